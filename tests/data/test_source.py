"""PromptSource: order, epochs, groups, what comes back, and resuming exactly (cases 3, 14 and 19)."""

import json
import pickle
from array import array
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.data.encode import Encoded, PromptEncoder
from slime.data.errors import DataError
from slime.data.prompts import Prompt
from slime.data.sample import Sample, Status
from slime.data.source import DataSource, PromptSource
from slime.data.tokenizer import Tokenizer
from slime.tiny import make_tiny


class Numbers:
    """Prompt "i" encodes to i + 1 tokens; counts how often it is asked."""

    limit_option = "--limit"

    def __init__(self):
        self.encoded = Counter()

    def encode(self, prompts):
        self.encoded.update(prompt.content for prompt in prompts)
        return [Encoded(prompt.content, array("i", range(int(prompt.content) + 1))) for prompt in prompts]


def numbers(count):
    return [Prompt(str(i), f"numbers:{i}", label=i, metadata={"seen": []}) for i in range(count)]


def make(count=5, **options):
    return PromptSource(numbers(count), Numbers(), **options)


def labels(groups):
    return [group[0].label for group in groups]


def test_groups_and_their_numbers():
    groups = make(n_samples_per_prompt=3).get_samples(2)
    assert [[sample.index for sample in group] for group in groups] == [[0, 1, 2], [3, 4, 5]]
    assert [[sample.group_index for sample in group] for group in groups] == [[0] * 3, [1] * 3]
    assert {sample.prompt for sample in groups[1]} == {"1"} and {sample.label for sample in groups[1]} == {1}
    assert all(sample.tokens == [0, 1] and sample.status is Status.PENDING for sample in groups[1])


def test_samples_of_a_group_share_nothing():
    source = make(1, n_samples_per_prompt=2)
    ((a, b),) = source.get_samples(1)
    a.tokens.append(7)
    a.metadata["seen"].append("a")
    ((c, _),) = source.get_samples(1)
    assert b.tokens == c.tokens == [0] and b.metadata == c.metadata == {"seen": []}


def test_messages_of_a_group_are_not_shared_either(tiny):
    messages = [{"role": "user", "content": "1+1="}]
    source = PromptSource([Prompt(messages, "here")], PromptEncoder(Tokenizer.load(tiny.model)), n_samples_per_prompt=2)
    ((a, b),) = source.get_samples(1)
    a.prompt.append({"role": "assistant", "content": "2"})
    a.prompt[0]["content"] = "?"
    assert b.prompt == source.get_samples(1)[0][0].prompt == [{"role": "user", "content": "1+1="}]


def test_three_prompts_for_a_batch_of_eight():
    source = make(3)
    assert labels(source.get_samples(8)) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert source.epoch == 2 and labels(source.get_samples(1)) == [2] and source.epoch == 3


@given(st.integers(1, 7), st.lists(st.integers(0, 9), max_size=6), st.booleans(), st.integers(0, 3))
def test_every_prompt_comes_once_an_epoch(count, draws, shuffle, seed):
    source = make(count, shuffle=shuffle, seed=seed)
    drawn = [label for n in draws for label in labels(source.get_samples(n))]
    assert len(drawn) == sum(draws) and source.epoch == sum(draws) // count
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))
    once = make(count, shuffle=shuffle, seed=seed).get_samples(sum(draws))
    assert drawn == labels(once)  # the sizes of the batches don't matter


def test_the_order_depends_on_seed_and_epoch():
    source, same, other = make(50, shuffle=True, seed=1), make(50, shuffle=True, seed=1), make(50, shuffle=True, seed=2)
    first, second = labels(source.get_samples(50)), labels(source.get_samples(50))
    assert first != second != list(range(50)) and first == labels(same.get_samples(50)) != labels(other.get_samples(50))


def test_a_prompt_is_encoded_once_for_all_epochs():
    encoder = Numbers()
    PromptSource(numbers(3), encoder).get_samples(10)
    assert encoder.encoded == {"0": 1, "1": 1, "2": 1}


def test_what_is_beyond_the_memory_for_tokens_is_encoded_again(monkeypatch):
    monkeypatch.setattr("slime.data.source.MAX_KEPT_TOKENS", 3)
    encoder = Numbers()
    source = PromptSource(numbers(3), encoder)
    assert labels(source.get_samples(3)) == labels(source.get_samples(3)) == [0, 1, 2]
    assert encoder.encoded == {"0": 1, "1": 1, "2": 2}


def test_too_long_prompts_are_left_out_and_counted(caplog):
    source = make(5, max_tokens=3)
    assert labels(source.get_samples(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert source.num_too_long == 2
    assert caplog.messages == [
        "numbers:3: left out, its 4 tokens are more than --limit 3",
        "numbers:4: left out, its 5 tokens are more than --limit 3",
    ]


def test_of_many_that_are_too_long_some_are_named(caplog):
    source = make(50, max_tokens=3)
    assert labels(source.get_samples(5)) == [0, 1, 2, 0, 1]
    assert source.num_too_long == 47 and len(caplog.messages) == 21
    assert caplog.messages[-1] == "further prompts are left out for their length; rollout/prompts_too_long counts them"


def test_when_all_prompts_are_too_long():
    with pytest.raises(DataError, match="all 5 prompts are longer than --limit 0; the shortest has 1 tokens"):
        make(5, max_tokens=0).get_samples(1)


def test_returned_groups_come_first_as_they_were():
    source = make(n_samples_per_prompt=2)
    first, _second, third = source.get_samples(3)
    first[0].tokens += [8, 9]
    first[0].response_length, first[0].rollout_log_probs, first[0].weight_versions = 2, [-0.5, -0.25], ["3"]
    first[0].status = Status.ABORTED
    source.add_samples([third])
    source.add_samples([first])
    again = source.get_samples(4)
    assert again[0] is third and again[1] is first and labels(again[2:]) == [3, 4]
    assert first[0].tokens == [0, 8, 9] and first[0].rollout_log_probs == [-0.5, -0.25]


def test_only_groups_of_samples_are_taken_back():
    with pytest.raises(TypeError, match="list of groups"):
        make().add_samples([Sample()])


finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def samples(draw):
    log_probs = draw(st.lists(finite, max_size=4))
    return Sample(
        group_index=draw(st.integers(0, 9)),
        index=draw(st.integers(0, 99)),
        prompt=draw(st.text(max_size=5) | st.just([{"role": "user", "content": "x"}])),
        tokens=draw(st.lists(st.integers(0, 2**31), min_size=len(log_probs), max_size=6)),
        response_length=len(log_probs),
        rollout_log_probs=log_probs,
        status=draw(st.sampled_from(Status)),
        reward=draw(st.none() | finite | st.dictionaries(st.text(max_size=3), finite, max_size=2)),
        metadata=draw(
            st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3), max_size=3)
        ),
    )


@given(
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 20),
    st.lists(st.lists(samples(), min_size=1, max_size=2), max_size=3),
)
@settings(deadline=None)
def test_a_resumed_source_goes_on_as_if_it_had_not_stopped(tmp_path_factory, count, shuffle, drawn, returned):
    options = {
        "n_samples_per_prompt": 2,
        "shuffle": shuffle,
        "max_tokens": 4,
        "directory": tmp_path_factory.mktemp("state"),
    }
    source, resumed = make(count, **options), make(count, **options)
    source.get_samples(drawn)
    source.add_samples(returned)
    source.save(7)
    resumed.load(7)
    assert resumed.state_dict() == source.state_dict()
    for n in (1, 2, 9):
        assert resumed.get_samples(n) == source.get_samples(n)


def test_resumed_with_fewer_samples_a_prompt_no_number_is_given_twice(tmp_path):
    source = make(9, n_samples_per_prompt=4, directory=tmp_path)
    before = source.get_samples(3)
    source.save(7)
    resumed = make(9, n_samples_per_prompt=2, directory=tmp_path)
    resumed.load(7)
    after = resumed.get_samples(2)
    assert [sample.index for group in before for sample in group] == list(range(12))
    assert [[sample.index for sample in group] for group in after] == [[12, 13], [14, 15]]
    assert [group[0].group_index for group in after] == [3, 4]


def test_states_that_do_not_fit(tmp_path):
    make(5, directory=tmp_path).save(1)
    for other, what in (
        (make(4, directory=tmp_path), "num_prompts = 5, this one has 4"),
        (make(5, directory=tmp_path, seed=1), "seed = 42, this one has 1"),
        (make(5, directory=tmp_path, shuffle=True), "shuffle = False, this one has True"),
    ):
        with pytest.raises(DataError, match=f"1.json: the saved position is of a run with {what}"):
            other.load(1)
    with pytest.raises(DataError, match=r"2.json: no such file"):
        make(directory=tmp_path).load(2)
    (tmp_path / "3.json").write_text('{"epoch"')
    with pytest.raises(DataError, match=r"3.json: "):
        make(directory=tmp_path).load(3)
    state = make().state_dict() | {"returned": [[{"status": "pending", "masks": []}]]}  # of another slime
    for content, message in (("[]", "indices"), (json.dumps(state), "masks")):
        (tmp_path / "4.json").write_text(content)
        with pytest.raises(DataError, match=f"4.json: .*{message}"):
            make(directory=tmp_path).load(4)
    with pytest.raises(DataError, match="without a directory"):
        make().save(1)


def test_saving_again_replaces_the_state_whole(tmp_path):
    source = make(directory=tmp_path)
    source.save(1)
    source.get_samples(2)
    source.save(1)
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]
    assert json.loads((tmp_path / "1.json").read_text())["drawn"] == [2]


def test_a_rollout_of_samples_is_small_for_its_way_between_processes():
    groups = make(32, n_samples_per_prompt=8).get_samples(32)
    assert len(pickle.dumps(groups)) < 256 * 256


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "col", num_train=20, num_demos=20)


def config_of(tiny, **options):
    defaults = {
        "hf_checkpoint": str(tiny.model),
        "prompt_data_weights": (),
        "prompt_data": (str(tiny.train),),
        "input_key": "prompt",
        "label_key": "label",
        "metadata_key": "metadata",
        "tool_key": "tools",
        "skip_malformed_prompts": False,
        "apply_chat_template": True,
        "apply_chat_template_kwargs": {},
        "disable_rollout_global_dataset": False,
        "loss_type": "policy_loss",
        "n_samples_per_prompt": 8,
        "rollout_max_prompt_len": None,
        "rollout_max_context_len": None,
        "rollout_shuffle": True,
        "rollout_seed": 42,
        "buffer_filter_path": None,
        "save": None,
        "load": None,
    }
    return SimpleNamespace(**defaults | options)


def test_from_config_for_generation(tiny):
    source = PromptSource.from_config(config_of(tiny))
    assert isinstance(source, DataSource) and len(source) == 20
    groups = source.get_samples(4)
    assert [len(group) for group in groups] == [8] * 4
    sample = groups[0][0]
    a, b = sample.prompt.split("\n")[1].removesuffix("=<|im_end|>").split("+")
    assert sample.label == str(int(a) + int(b))
    assert sample.tokens[:3] == [1, 3, 8] and sample.tokens[-3:] == [1, 4, 8] and sample.loss_mask is None


def test_from_config_keeps_states_beside_the_checkpoints(tiny, tmp_path):
    first = PromptSource.from_config(config_of(tiny, save=str(tmp_path / "a")))
    first.get_samples(3)
    first.save(7)
    assert (tmp_path / "a" / "rollout" / "7.json").is_file()
    second = PromptSource.from_config(config_of(tiny, load=str(tmp_path / "a"), save=str(tmp_path / "b")))
    second.load(7)
    assert second.get_samples(2) == first.get_samples(2)


def test_from_config_without_prompts(tiny):
    """--disable-rollout-global-dataset: a function finds its own."""
    source = PromptSource.from_config(config_of(tiny, disable_rollout_global_dataset=True, prompt_data=()))
    groups = source.get_samples(3)
    assert [[sample.prompt for sample in group] for group in groups] == [[""] * 8] * 3
    assert [sample.index for group in groups for sample in group] == list(range(24)) and groups[0][0].tokens == []


def test_from_config_for_supervised_training(tiny):
    sft = {
        "loss_type": "sft_loss",
        "prompt_data": str(tiny.sft),
        "input_key": "messages",
        "label_key": None,
        "n_samples_per_prompt": 1,
    }
    ((sample,),) = PromptSource.from_config(config_of(tiny, **sft)).get_samples(1)
    sample.check()
    assert sample.status is Status.COMPLETED and sample.loss_mask == [1] * sample.response_length
    assert sample.response.endswith("<|im_end|>") and sample.prompt.endswith("<|im_start|>assistant\n")
    source = PromptSource.from_config(config_of(tiny, **sft, rollout_max_context_len=5))
    with pytest.raises(DataError, match="all 20 prompts are longer than --rollout-max-context-len 5"):
        source.get_samples(1)


def test_tools_of_a_prompt_reach_custom_functions_in_the_metadata():
    source = PromptSource([Prompt("0", "here", metadata={"a": 1}, tools=[{"name": "add"}])], Numbers())
    assert source.get_samples(1)[0][0].metadata == {"a": 1, "tools": [{"name": "add"}]}


# Several sets, by their weights.


def of_sets(*sizes, **options):
    """A source of sets of so many prompts, labelled (set, number)."""
    prompts = [Prompt("0", "here", label=(k, i)) for k, size in enumerate(sizes) for i in range(size)]
    return PromptSource(prompts, Numbers(), sizes=sizes, **options)


def test_three_of_the_first_set_to_one_of_the_second():
    source = of_sets(4, 2, weights=[3, 1])
    drawn = labels(source.get_samples(8))
    assert [which for which, _ in drawn] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert [i for which, i in drawn if which == 0] == [0, 1, 2, 3, 0, 1], "epochs of its own"
    assert source.epoch == 1


@settings(deadline=None)
@given(
    sets=st.lists(st.tuples(st.integers(1, 6), st.floats(0.1, 10)), min_size=1, max_size=4),
    total=st.integers(1, 200),
    shuffle=st.booleans(),
)
def test_sets_are_drawn_by_their_weights_each_in_epochs(sets, total, shuffle):
    sizes, weights = zip(*sets, strict=True)
    drawn = labels(of_sets(*sizes, weights=weights, shuffle=shuffle).get_samples(total))
    for k, (size, weight) in enumerate(sets):
        of_set = [i for which, i in drawn if which == k]
        assert abs(len(of_set) - total * weight / sum(weights)) < len(sets)
        for start in range(0, len(of_set) - size + 1, size):
            assert sorted(of_set[start : start + size]) == list(range(size))


def test_a_mixture_goes_on_where_it_was(tmp_path):
    options = {"weights": [1, 5], "shuffle": True, "directory": tmp_path}
    source, resumed = of_sets(3, 7, **options), of_sets(3, 7, **options)
    source.get_samples(11)
    source.save(0)
    resumed.load(0)
    assert labels(source.get_samples(30)) == labels(resumed.get_samples(30))
    with pytest.raises(DataError, match=r"weights = \[1, 5\], this one has \[1, 1\]"):
        of_sets(3, 7, **options | {"weights": [1, 1]}).load(0)


def test_how_far_it_has_come_is_a_metric():
    source = make(5, max_tokens=3)
    source.get_samples(7)
    assert source.metrics() == {"rollout/epoch": 2, "rollout/prompts_too_long": 2}


def take_newest(buffer, n):
    return [buffer.pop() for _ in range(min(n, len(buffer)))]


def take_one_and_throw_the_rest_away(buffer, n):
    group = buffer.pop(1)
    buffer.clear()
    return [group]


def test_a_buffer_filter_chooses_what_goes_out_again():
    source = make(buffer_filter=take_newest)
    source.add_samples(source.get_samples(3))
    assert labels(source.get_samples(2)) == [2, 1]
    assert labels(source.get_samples(2)) == [0, 3]
    assert source.take_discarded() == []


def test_what_a_buffer_filter_throws_away_is_told_once():
    source = make(buffer_filter=take_one_and_throw_the_rest_away)
    source.add_samples(source.get_samples(3))
    assert labels(source.get_samples(2)) == [1, 3]
    assert labels(source.take_discarded()) == [0, 2]
    assert source.take_discarded() == []


@pytest.mark.parametrize(
    ("buffer_filter", "message"),
    [
        (lambda buffer, n: [buffer[0]], "left 1 groups that it returned in the buffer"),
        (lambda buffer, n: [buffer.pop() for _ in range(3)], "returned 3 groups; asked for at most 2"),
        (lambda buffer, n: [buffer.pop()] * 2, "returned 2 groups; asked for at most 2, each once"),
        (lambda buffer, n: [[Sample()]], "of its buffer"),
    ],
)
def test_a_buffer_filter_that_breaks_its_promise(buffer_filter, message):
    source = make(buffer_filter=buffer_filter)
    source.add_samples(source.get_samples(3))
    with pytest.raises(DataError, match=message):
        source.get_samples(2)


def test_a_group_that_fanned_out_waits_in_the_state():
    first, second = make(), make()
    ((sample,),) = first.get_samples(1)
    parts = [[sample, Sample(group_index=0, index=0, tokens=[0, 1, 2], response_length=1)]]
    first.add_samples([parts])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.get_samples(1) == [parts]
