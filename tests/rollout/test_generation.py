"""The default rollout function and users' functions in it, on a real engine behind a real router."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from slime.config import Config
from slime.data.sample import Sample, Status
from slime.data.source import PromptSource
from slime.data.tokenizer import Tokenizer
from slime.inference.router import Router
from slime.inference.server import EngineServer
from slime.rewards import RewardError
from slime.rollout import generator
from slime.rollout.generate import generate_rollout
from slime.rollout.generator import Generator
from slime.rollout.metrics import rollout_metrics
from slime.rollout.producer import Producer, open_source
from slime.rollout.types import RolloutError, RolloutFnTrainOutput, flatten
from slime.tiny import Tiny
from tests.rollout import hooks

HOOKS = "tests.rollout.hooks"
Open = Callable[[Config], Config]
MakeConfig = Callable[..., Config]


def roll(config: Config, source: PromptSource | None = None, rollout_id: int = 0) -> RolloutFnTrainOutput:
    return generate_rollout(config, rollout_id, source or open_source(config))


class Groups:
    """A data source of groups that the test made: all at once, and then no more."""

    def __init__(self, *groups: list[Sample]) -> None:
        self.groups = list(groups)

    def get_samples(self, n: int) -> list[list[Sample]]:
        groups, self.groups = self.groups, []
        return groups


def test_samples_hold_what_the_engine_sampled(make_config: MakeConfig, open_generator: Open, tiny: Tiny) -> None:
    config = open_generator(make_config())
    output = roll(config, rollout_id=3)

    assert [len(group) for group in output.samples] == [2] * 4
    tokenizer = Tokenizer.load(tiny.model)
    (end,) = tokenizer.stop_token_ids
    for group in output.samples:
        assert len({tuple(sample.tokens[: sample.prompt_length]) for sample in group}) == 1
    samples = flatten(output.samples)
    assert len({tuple(sample.tokens) for sample in samples}) > 4  # at temperature 1 no group says one thing
    for i, sample in enumerate(samples):
        sample.check()
        said = sample.tokens[sample.prompt_length :]
        assert (sample.index, sample.group_index, sample.rollout_id) == (i, i // 2, 3)
        assert sample.prompt == tokenizer.decode([sample.tokens[: sample.prompt_length]])[0]
        assert 1 <= len(said) <= 8
        assert sample.status is (Status.COMPLETED if said[-1] == end else Status.TRUNCATED)
        assert sample.response == tokenizer.decode([said])[0].removesuffix("<|im_end|>")
        assert all(log_prob < 0 for log_prob in sample.rollout_log_probs)
        assert sample.weight_versions == ["default"]
        assert sample.prefix_cache_info["total_prompt_tokens"] == sample.prompt_length
        assert sample.reward == float(sample.status is Status.COMPLETED and sample.response == sample.label)
        assert sample.loss_mask is None
    assert output.metrics["perf/request/e2e_latency/max"] > 0


def test_a_full_context_asks_for_nothing(make_config: MakeConfig, open_generator: Open) -> None:
    source = open_source(make_config())  # whose prompts have 14 tokens and more: with the limit they would be left out
    output = roll(open_generator(make_config(rollout_max_context_len=10)), source)
    for sample in flatten(output.samples):
        assert (sample.response_length, sample.status, sample.reward) == (0, Status.TRUNCATED, 0.0)
        sample.check()
    assert output.metrics == {}


def test_a_stop_token_ends_a_response(make_config: MakeConfig, open_generator: Open) -> None:
    """All tokens are stop tokens, so every response has one, and no text."""
    stops = [str(i) for i in range(64)]
    output = roll(open_generator(make_config("--rollout-stop-token-ids", *stops)))
    for sample in flatten(output.samples):
        assert (sample.response_length, sample.response, sample.status) == (1, "", Status.COMPLETED)


def test_a_stop_text_ends_a_response_and_stays_in_it(make_config: MakeConfig, open_generator: Open) -> None:
    """The engine looks for it in the text; of 64 tokens ten are digits, so of 64 that are sampled one surely is."""
    output = roll(open_generator(make_config("--rollout-stop", *"0123456789")))
    samples = flatten(output.samples)
    stopped = [sample for sample in samples if any(map(str.isdigit, sample.response))]
    assert stopped
    for sample in stopped:
        assert sample.status is Status.COMPLETED and sample.response[-1].isdigit()
        assert not any(map(str.isdigit, sample.response[:-1]))
        sample.check()
    assert all(sample.rollout_log_probs and sample.response_length <= 8 for sample in samples)


def test_prompts_that_differ_within_a_group(make_config: MakeConfig, open_generator: Open) -> None:
    group = [Sample(group_index=0, index=i, prompt=prompt, label="") for i, prompt in enumerate(["sort 1", "sort 22"])]
    roll(open_generator(make_config(rollout_batch_size=1)), Groups(group))
    assert [sample.prompt_length for sample in group] == [6, 7]


@pytest.mark.parametrize("custom", [None, f"{HOOKS}.generate_over_http"])
def test_of_a_group_handed_back_only_unfinished_samples_are_generated(
    make_config: MakeConfig, open_generator: Open, custom: str | None
) -> None:
    done = Sample(group_index=0, index=0, rollout_id=1, tokens=[4, 5, 6], response_length=1, reward=0.5, label="")
    done.status = Status.COMPLETED
    aborted = Sample(group_index=0, index=1, rollout_id=1, tokens=[4, 5, 7], response_length=1, label="")
    aborted.status = Status.ABORTED
    options = {} if custom is None else {"custom_generate_function_path": custom}
    ((first, second),) = roll(
        open_generator(make_config(rollout_batch_size=1, **options)), Groups([done, aborted]), rollout_id=2
    ).samples
    assert (first.tokens, first.reward, first.rollout_id) == ([4, 5, 6], 0.5, 1)
    assert (second.tokens[:2], second.rollout_id) == ([4, 5], 2)
    assert second.status in (Status.COMPLETED, Status.TRUNCATED)


def test_messages_that_nobody_rendered(make_config: MakeConfig, open_generator: Open) -> None:
    config = open_generator(make_config("--no-apply-chat-template"))
    with pytest.raises(RolloutError, match=r"sample 0 .*list of messages without tokens; give --apply-chat-template"):
        roll(config)


def test_what_the_engine_refuses_is_one_error_with_its_words(make_config: MakeConfig, open_generator: Open) -> None:
    too_long = [Sample(group_index=0, index=7, prompt="", tokens=[20] * 600, label="")]
    with pytest.raises(RolloutError, match=r"sample 7 .*400.*(longer|exceed)"):
        roll(open_generator(make_config(rollout_batch_size=1)), Groups(too_long))


def test_a_router_that_hangs_is_named(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was stopped does: the system takes connections for it."""
    monkeypatch.setattr(generator, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        host, port = hanging.getsockname()
        config = make_config(sglang_router_request_timeout_secs=0.2)
        config = config.replace(sglang_router_ip=host, sglang_router_port=port)
        said = rf"within 0\.2 s; the router at http://{host}:{port} does not answer$"
        with Generator(config), pytest.raises(RolloutError, match=said):
            roll(config)


def test_the_generator_is_there_and_only_once(make_config: MakeConfig, open_generator: Open) -> None:
    config = make_config()
    with pytest.raises(RolloutError, match=r"no .*Generator is open"):
        roll(config)
    config = open_generator(config)
    with pytest.raises(RolloutError, match="open in this process already"):
        Generator(config)


class TestCustomGenerate:
    def test_over_http(self, make_config: MakeConfig, open_generator: Open) -> None:
        config = make_config(custom_generate_function_path=f"{HOOKS}.generate_over_http", rollout_temperature=0.5)
        for sample in flatten(roll(open_generator(config)).samples):
            sample.check()
            assert sample.response == "said"
            assert sample.metadata["params"]["temperature"] == 0.5
            assert sample.metadata["params"]["max_new_tokens"] == 8
            assert sample.reward == 0.0

    def test_fan_out(self, make_config: MakeConfig, open_generator: Open) -> None:
        """4 prompts of 2 samples become 16 samples: the first of each pair keeps its reward, the second is graded."""
        config = make_config(custom_generate_function_path=f"{HOOKS}.two_of_each", num_steps_per_rollout=2)
        config = open_generator(config)
        samples = flatten(roll(config).samples)
        assert [sample.index for sample in samples] == [i // 2 for i in range(16)]
        assert [sample.group_index for sample in samples] == [i // 4 for i in range(16)]
        assert [sample.reward for sample in samples] == [0.25, 1.0] * 8
        assert not any(sample.metadata.get("evaluation") for sample in samples)

    def test_that_raises_names_the_sample_and_ends_the_others(
        self, make_config: MakeConfig, open_generator: Open
    ) -> None:
        config = open_generator(make_config(custom_generate_function_path=f"{HOOKS}.raises_for_the_third"))
        hooks.CANCELLED.clear()
        with pytest.raises(RolloutError, match=r"sample 2 .*raises_for_the_third raised KeyError: 'tool'"):
            roll(config)
        assert set(hooks.CANCELLED) == {0, 1, 3, 4, 5, 6, 7}

    def test_that_returns_something_else(self, make_config: MakeConfig, open_generator: Open) -> None:
        config = open_generator(make_config(custom_generate_function_path=f"{HOOKS}.returns_text"))
        with pytest.raises(RolloutError, match="returned '4', not a Sample or a list of them"):
            roll(config)

    def test_that_gives_up(self, make_config: MakeConfig, open_generator: Open) -> None:
        config = open_generator(make_config(custom_generate_function_path=f"{HOOKS}.gives_up"))
        with pytest.raises(RolloutError, match=r"sample \d .*gives_up returned it aborted, and nobody has stopped it"):
            roll(config)

    def test_that_never_returns(self, make_config: MakeConfig, open_generator: Open) -> None:
        option = {"custom_generate_function_path": f"{HOOKS}.never_returns", "sglang_router_request_timeout_secs": 0.2}
        with pytest.raises(RolloutError, match=r"sample \d .*did not return within 0.2 s"):
            roll(open_generator(make_config(**option)))

    def test_that_is_a_plain_function_does_not_stop_the_others(
        self, make_config: MakeConfig, open_generator: Open
    ) -> None:
        config = open_generator(make_config(custom_generate_function_path=f"{HOOKS}.waits_for_all_eight"))
        assert [sample.response for sample in flatten(roll(config).samples)] == ["met"] * 8


class TestRewards:
    def test_custom(self, make_config: MakeConfig, open_generator: Open) -> None:
        samples = flatten(roll(open_generator(make_config(custom_rm_path=f"{HOOKS}.length_reward"))).samples)
        assert [sample.reward for sample in samples] == [sample.response_length for sample in samples]

    def test_by_a_grader_that_works_in_processes(self, make_config: MakeConfig, open_generator: Open) -> None:
        config = open_generator(make_config(custom_generate_function_path=f"{HOOKS}.says_a_root"))
        samples = flatten(roll(config.replace(rm_type="math")).samples)
        assert [sample.reward for sample in samples] == [0.0] + [1.0] * 7

    def test_a_teacher_with_the_weights_of_the_policy(
        self, make_config: MakeConfig, open_generator: Open, engine: EngineServer
    ) -> None:
        teacher = "slime.rewards.teacher.ask_teacher"
        for sample in flatten(roll(open_generator(make_config(custom_rm_path=teacher, rm_url=engine.url))).samples):
            assert sample.teacher_log_probs == pytest.approx(sample.rollout_log_probs, abs=1e-4)

    def test_beside_generation(self, make_config: MakeConfig, open_generator: Open) -> None:
        """All samples but the first are generated only after the first was graded."""
        functions = {
            "custom_generate_function_path": f"{HOOKS}.waits_until_another_is_graded",
            "custom_rm_path": f"{HOOKS}.tells_that_one_is_graded",
        }
        config = make_config(**functions, sglang_router_request_timeout_secs=10)
        assert [sample.reward for sample in flatten(roll(open_generator(config)).samples)] == [0.0] * 8

    def test_of_a_whole_group(self, make_config: MakeConfig, open_generator: Open) -> None:
        config = open_generator(make_config("--group-rm", custom_rm_path=f"{HOOKS}.rank_reward"))
        for group in roll(config).samples:
            shortest = min(sample.response_length for sample in group)
            assert [sample.reward for sample in group] == [float(s.response_length > shortest) for s in group]

    def test_of_a_whole_group_that_fanned_out(self, make_config: MakeConfig, open_generator: Open) -> None:
        """The group's function gets what has no reward yet: two second parts."""
        functions = {"custom_generate_function_path": f"{HOOKS}.two_of_each", "custom_rm_path": f"{HOOKS}.rank_reward"}
        samples = flatten(roll(open_generator(make_config("--group-rm", **functions))).samples)
        assert [sample.reward for sample in samples] == [0.25, 0.0] * 8

    def test_that_raises_names_the_sample(self, make_config: MakeConfig, open_generator: Open) -> None:
        config = open_generator(make_config(custom_rm_path=f"{HOOKS}.raises_for_group_one"))
        with pytest.raises(RewardError, match=r"sample [23] \(group 1, .*raised ValueError: judge is down"):
            roll(config)
        assert len(flatten(roll(config.replace(custom_rm_path=f"{HOOKS}.length_reward")).samples)) == 8  # it goes on

    def test_that_raises_is_dropped_and_counted(self, make_config: MakeConfig, open_generator: Open) -> None:
        """Group 1 gets no rewards: it is in the batch, with nothing to train on, and the others are as they were."""
        options = {"rm_failure_policy": "drop", "rm_retries": 1}
        config = open_generator(make_config(custom_rm_path=f"{HOOKS}.raises_for_group_one", **options))
        samples = flatten(roll(config).samples)
        assert [sample.remove_sample for sample in samples] == [False] * 2 + [True] * 2 + [False] * 4
        for sample in samples[2:4]:
            assert sample.reward == 0.0 and sample.metadata["reward_retries"] == 1
            assert sample.metadata["reward_failure"].startswith(f"{HOOKS}.raises_for_group_one raised")
        metrics = rollout_metrics(samples, [0.0] * 8, seconds=1, num_gpus=1)
        assert (metrics["rollout/reward_failures"], metrics["rollout/reward_retries"]) == (2, 2)


class TestHooks:
    def test_sample_hook_sees_graded_samples_and_may_replace_them(
        self, make_config: MakeConfig, open_generator: Open
    ) -> None:
        output = roll(open_generator(make_config(rollout_sample_hook_path=f"{HOOKS}.mark")), rollout_id=5)
        for even, odd in output.samples:
            assert even.metadata["seen"] == (5, False, even.reward)
            assert odd.metadata == {"replaced": 0.0}

    def test_sample_hooks_run_side_by_side(self, make_config: MakeConfig, open_generator: Open) -> None:
        hook = f"{HOOKS}.waits_until_all_eight_are_seen"
        custom = {"custom_generate_function_path": f"{HOOKS}.answers_at_once"}
        assert len(roll(open_generator(make_config(**custom, rollout_sample_hook_path=hook))).samples) == 4

    def test_sample_hook_that_returns_something_else(self, make_config: MakeConfig, open_generator: Open) -> None:
        with pytest.raises(RolloutError, match=r"sample \d .*rollout-sample-hook-path .*says_thanks returned 'thanks'"):
            roll(open_generator(make_config(rollout_sample_hook_path=f"{HOOKS}.says_thanks")))

    @pytest.mark.parametrize("hook", ["remove_odd", "remove_odd_later"])
    def test_sample_filter(self, make_config: MakeConfig, open_generator: Open, hook: str) -> None:
        output = roll(open_generator(make_config(rollout_sample_filter_path=f"{HOOKS}.{hook}")))
        assert [sample.remove_sample for sample in flatten(output.samples)] == [False, True] * 4

    def test_all_samples_process(self, make_config: MakeConfig, open_generator: Open) -> None:
        config = open_generator(make_config(rollout_all_samples_process_path=f"{HOOKS}.return_all"))
        source = open_source(config)
        samples = roll(config, source).samples
        assert source.get_samples(4) == samples

    @pytest.mark.parametrize("hook", ["bare_groups", "bare_groups_later"])
    def test_rollout_function_that_returns_bare_groups(
        self, make_config: MakeConfig, open_generator: Open, hook: str
    ) -> None:
        config = make_config(rollout_function_path=f"{HOOKS}.{hook}")
        with Producer(config, open_source(config)) as producer:
            (batch,), metrics = producer.rollout(0, dp_size=1)
            evaluated, evaluated_samples = producer.evaluate(0)
        assert evaluated_samples == {"mine": []}
        assert batch.raw_rewards_N.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
        assert metrics["rollout/raw_reward"] == 3.5
        assert evaluated == {"eval/mine": 0.5, "eval/mine-truncated_ratio": 0.5}

    def test_eval_function_that_forgets_a_column(self, make_config: MakeConfig) -> None:
        config = make_config(eval_function_path=f"{HOOKS}.forgets_what_was_truncated")
        with (
            Producer(config, open_source(config)) as producer,
            pytest.raises(RolloutError, match=r"--eval-function-path .*truncated: eval set mine has no truncated"),
        ):
            producer.evaluate(0)

    def test_log_functions(self, make_config: MakeConfig) -> None:
        """One says that it has logged all there is, the other leaves it to us."""
        config = make_config(
            rollout_function_path=f"{HOOKS}.bare_groups",
            custom_rollout_log_function_path=f"{HOOKS}.log_rollout_later",
            custom_eval_rollout_log_function_path=f"{HOOKS}.log_eval",
        )
        hooks.LOGGED.clear()
        with Producer(config, open_source(config)) as producer:
            assert producer.rollout(4, dp_size=1)[1] == {}
            assert "eval/mine" in producer.evaluate(5)[0]
        assert hooks.LOGGED == [(4, 8, {}), (5, ["mine"], {})]


class TestEval:
    def test_two_sets_each_with_its_own_options(
        self, make_config: MakeConfig, open_generator: Open, tiny: Tiny, tmp_path
    ) -> None:
        file = tmp_path / "eval.yaml"
        file.write_text(
            f"datasets:\n- {{name: once, path: {tiny.heldout}, temperature: 0}}\n"
            f"- {{name: thrice, path: '{tiny.heldout}@[0:2]', n_samples_per_eval_prompt: 3, max_response_len: 1}}\n"
        )
        config = open_generator(make_config(eval_config=file, eval_interval=1))
        data = generate_rollout(config, 2, open_source(config), evaluation=True).data
        assert list(data) == ["once", "thrice"]
        assert [len(data[name]["samples"]) for name in data] == [6, 6]
        assert [sample.group_index for sample in data["thrice"]["samples"]] == [0, 0, 0, 1, 1, 1]
        for sample, reward, truncated in zip(
            *(data["thrice"][k] for k in ("samples", "rewards", "truncated")), strict=True
        ):
            assert (sample.response_length, sample.rollout_id) == (1, 2)
            assert reward == sample.reward
            assert truncated == (sample.status is Status.TRUNCATED)

        again = generate_rollout(config, 2, open_source(config), evaluation=True).data
        once = [[sample.tokens for sample in result["once"]["samples"]] for result in (data, again)]
        assert once[0] == once[1]  # greedy, and nothing of the first evaluation is left in the prompts

    def test_reward_key_of_a_set(self, make_config: MakeConfig, open_generator: Open, tiny: Tiny, tmp_path) -> None:
        file = tmp_path / "eval.yaml"
        file.write_text(
            f"datasets:\n- {{name: own, path: {tiny.heldout}, reward_key: brief}}\n"
            f"- {{name: same, path: {tiny.heldout}}}\n"
        )
        config = make_config(
            eval_config=file, eval_interval=1, reward_key="right", custom_rm_path=f"{HOOKS}.two_scores"
        )
        config = open_generator(config)
        data = generate_rollout(config, 0, open_source(config), evaluation=True).data
        assert (data["own"]["rewards"], data["same"]["rewards"]) == ([0.5] * 6, [1.0] * 6)

    @pytest.mark.parametrize(("function", "options"), [("length_reward", ()), ("all_right", ("--group-rm",))])
    def test_grader_of_a_set(
        self,
        make_config: MakeConfig,
        open_generator: Open,
        tiny: Tiny,
        tmp_path: Path,
        function: str,
        options: tuple[str, ...],
    ) -> None:
        """It wins over the function that grades everything else."""
        file = tmp_path / "eval.yaml"
        file.write_text(
            f"datasets:\n- {{name: own, path: {tiny.heldout}, rm_type: exact_match, max_response_len: 1}}\n"
            f"- {{name: same, path: {tiny.heldout}, max_response_len: 1}}\n"
        )
        config = make_config(*options, eval_config=file, eval_interval=1, custom_rm_path=f"{HOOKS}.{function}")
        config = open_generator(config)
        data = generate_rollout(config, 0, open_source(config), evaluation=True).data
        assert (data["own"]["rewards"], data["same"]["rewards"]) == ([0.0] * 6, [1.0] * 6)

    def test_custom_generate_knows_that_it_is_one(
        self, make_config: MakeConfig, open_generator: Open, tiny: Tiny
    ) -> None:
        config = make_config(
            *("--eval-prompt-data", "sort", str(tiny.heldout), "--eval-interval", "1"),
            custom_generate_function_path=f"{HOOKS}.two_of_each",
        )
        config = open_generator(config)
        data = generate_rollout(config, 0, open_source(config), evaluation=True).data
        assert len(data["sort"]["samples"]) == 12
        assert data["sort"]["samples"][0].metadata == {"evaluation": True}


def test_from_prompts_to_batches(make_config: MakeConfig, at_router: Open, router: Router) -> None:
    """Two rollouts of one producer: the second goes on in the prompts, over the same connections."""
    config = make_config(num_steps_per_rollout=2, micro_batch_size=2, custom_rm_path=f"{HOOKS}.length_reward")
    config = at_router(config)
    with Producer(config, open_source(config), router.token) as producer:
        (first, _), metrics = producer.rollout(0, dp_size=2)
        assert producer.progress() == "4 of 4 groups"
        (second, _), _ = producer.rollout(1, dp_size=2)
    assert first.group_ids_N.tolist() == [0, 1, 2, 3]
    assert second.group_ids_N.tolist() == [4, 5, 6, 7]
    assert first.raw_rewards_N.tolist() == first.response_lengths_N.tolist()
    assert [step.num_samples for step in first.steps] == [4, 4]
    assert metrics["rollout/response_len/max"] <= 8
    assert metrics["perf/longest_sample_tokens_per_sec"] == pytest.approx(
        metrics["rollout/response_len/max"] / metrics["perf/rollout_time"]
    )
