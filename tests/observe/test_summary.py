"""The summary of runs made by hand: of a run that ended, was killed, was resumed, of supervised training."""

import io
import json
import math
import subprocess
import sys

import pytest

from slime.data.sample import Sample, Status
from slime.observe import Metrics, MetricsError, RunDir, RunDirError, report, summarize
from slime.observe.summary import question
from slime.observe.terminal import Terminal, columns_of

SUMS = [("47+85=", "132"), ("12+30=", "42"), ("99+99=", "198"), ("10+10=", "20")]


class WritesYaml:
    def write_yaml(self, path):
        path.write_text("data:\n  num_rollout: 4\n")


def evaluate(run, metrics, step, accuracy, thinking, answers):
    metrics.log({"eval/col": accuracy, "eval/col/thinking_ratio": thinking, "eval/col-truncated_ratio": 0.0}, step=step)
    samples = [
        Sample(
            prompt=[{"role": "user", "content": asked}],
            response=answer,
            label=label,
            reward=float(answer.endswith(label)),
            status=Status.COMPLETED,
        )
        for (asked, label), answer in zip(SUMS, answers, strict=True)
    ]
    run.write_samples(step, {"col": samples})


def train(metrics, step, reward):
    metrics.log(
        {
            "rollout/raw_reward": reward,
            "rollout/advantages": 0.0,
            "rollout/response_len/mean": 10.0 + step,
            "rollout/thinking_ratio": reward,
            "perf/rollout_time": 0.4,
            "perf/train_time": 0.2,
            "perf/update_weights_time": 0.05,
            "perf/step_time": 0.7,
            "perf/longest_sample_tokens_per_sec": 60.0 + step,
        },
        step=step,
    )
    for i in (2 * step, 2 * step + 1):
        metrics.log({"train/loss": 0.1, "train/train_rollout_logprob_abs_diff_max": 1e-5 * (i + 1)}, step=i)


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path / "tiny-grpo")
    run.save_config(WritesYaml())
    return run


@pytest.fixture
def ended(run):
    metrics = Metrics(run)
    evaluate(run, metrics, 0, 0.25, 0.3, ["131", "42", "188", "30"])
    for step, reward in enumerate([0.3, 0.5, 0.7, 0.9]):
        train(metrics, step, reward)
        if step == 1:
            evaluate(run, metrics, 2, 0.5, 0.6, ["132", "42", "188", "30"])
    evaluate(run, metrics, 4, 1.0, 0.99, ["<think>7+5=12</think>132", "42", "\x1b[31m198", "20"])
    metrics.close()
    return run


def page(run, encoding="utf-8", env=None):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return report(summarize(run), Terminal(stream, env or {}))


def test_summary_of_a_run_that_ended(ended):
    summary = summarize(ended)
    assert (summary.steps, summary.planned) == (4, 4)
    assert summary.rewards == [0.3, 0.5, 0.7, 0.9]
    assert summary.lengths == [10.0, 11.0, 12.0, 13.0]
    [col] = summary.evaluations
    assert col.rewards == [("before", 0.25), ("step 2", 0.5), ("after", 1.0)]
    assert col.thinking == [("before", 0.3), ("step 2", 0.6), ("after", 0.99)]
    assert {part: round(value, 6) for part, value in summary.seconds.items()} == {
        "rollout": 0.4,
        "train": 0.2,
        "sync": 0.05,
        "step": 0.7,
    }
    assert summary.tokens_per_s == 61.5
    assert summary.logprob_diff == 8e-5
    assert [(t.prompt, t.label) for t in summary.transcripts] == SUMS[:3]
    assert summary.transcripts[0].answers == [("before", "131", 0.0), ("after", "<think>7+5=12</think>132", 1.0)]


def test_page_of_a_run_that_ended(ended):
    assert page(ended).splitlines() == [
        "── tiny-grpo ────────────────────────────────────────────── 4 steps in 0.7 s ──",
        "",
        "reward         0.300  ▃▅▆▇  0.900",
        "length          10.0  ▁▃▆█  13.0",
        "thinking         30%  ▃▅▆▇  90%",
        "",
        "held out          before     step 2      after",
        "col                0.250      0.500      1.000",
        "  thinking           30%        60%        99%",
        "",
        "a step       0.70 s",
        "             ██████████████████████████████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒·····",
        "             █ rollout 0.40  ▓ train 0.20  ▒ sync 0.05  · rest 0.05",
        "speed        62 tokens/s of the longest sample of a rollout",
        "log-probs    trainer and engine differ by at most 8.0e-05",
        "",
        "col          47+85=  (answer: 132)",
        "  before     ✗ 131",
        "  after      ✓ <think>7+5=12</think>132",
        "",
        "col          12+30=  (answer: 42)",
        "  before     ✓ 42",
        "  after      ✓ 42",
        "",
        "col          99+99=  (answer: 198)",
        "  before     ✗ 188",
        "  after      ✓ ·[31m198",
        "",
        f"directory    {ended.path}",
        f"this page    python -m slime.observe {ended.path}",
    ]


def test_killed_run_shows_how_far_it_came(run):
    metrics = Metrics(run)
    evaluate(run, metrics, 0, 0.25, 0.3, ["131", "42", "188", "30"])
    train(metrics, 0, 0.3)
    with open(run.metrics_file, "a") as file:
        file.write('{"rollout/raw_rew')
    summary = summarize(run)
    assert (summary.steps, summary.planned, summary.rewards) == (1, 4, [0.3])
    assert summary.evaluations[0].rewards == [("before", 0.25)]
    assert "1 of 4 steps" in page(run).splitlines()[0]
    assert "  before     ✗ 131" in page(run)


def test_run_that_has_measured_nothing_has_a_page(run):
    lines = page(run).splitlines()
    assert "0 of 4 steps in 0.0 s" in lines[0]
    assert lines[1:] == ["", f"directory    {run.path}", f"this page    python -m slime.observe {run.path}"]


def test_the_command_of_the_page_can_be_pasted(tmp_path):
    run = RunDir.create(tmp_path / "a run")
    assert page(run).splitlines()[-1] == f"this page    python -m slime.observe '{run.path}'"


def test_resumed_run_counts_a_step_once_by_its_later_value(run):
    metrics = Metrics(run)
    for step, reward in [(0, 0.1), (1, 0.2), (2, 0.3), (1, 0.25), (2, 0.35)]:
        train(metrics, step, reward)
    assert summarize(run).rewards == [0.1, 0.25, 0.35]


def test_supervised_run_shows_its_loss(run):
    metrics = Metrics(run)
    for step in range(200):
        metrics.log({"train/loss": 2.0 - step / 100, "train/grad_norm": 1.0}, step=step)
        metrics.log({"rollout/raw_reward": 0.0, "perf/train_time": 0.05, "perf/actor_train_tok_per_s": 5e3}, step=step)
    [curve] = [line for line in page(run).splitlines() if line.startswith("loss")]
    assert curve.split()[1] == "1.9900" and curve.split()[-1] == "0.0200"
    assert curve.split()[2][0] == "█" and curve.split()[2][-1] == "▁"
    assert "speed        5000 tokens/s trained on" in page(run).splitlines()
    assert "reward" not in page(run)


@pytest.mark.parametrize("option", ["async_depth: 1", "max_weight_staleness: 0"])
@pytest.mark.parametrize("seconds", [0.45, 40.0])  # also where something else took long
def test_asynchronous_run_says_that_its_parts_overlap(run, option, seconds):
    run.config_file.write_text(f"rollout:\n  {option}\n")
    Metrics(run).log({"perf/rollout_time": 0.4, "perf/train_time": 0.4, "perf/step_time": seconds}, step=0)
    Metrics(run).log({"train/train_rollout_logprob_abs_diff_max": 0.25}, step=0)
    lines = page(run).splitlines()
    assert f"a step       {seconds:.2f} s, its parts overlap" in lines
    assert "log-probs    trainer and engine differ by at most 2.5e-01, whose weights are older" in lines


def test_the_parts_of_an_asynchronous_step(run):
    run.config_file.write_text("rollout:\n  async_depth: 1\n")
    Metrics(run).log({"perf/rollout_time": 0.4, "perf/train_time": 0.4, "perf/step_time": 0.45}, step=0)
    Metrics(run).log({"train/train_rollout_logprob_abs_diff_max": 0.25}, step=0)
    assert page(run).splitlines()[2:5] == [
        "a step       0.45 s, its parts overlap",
        "             █ rollout 0.40  ▓ train 0.40",
        "log-probs    trainer and engine differ by at most 2.5e-01, whose weights are older",
    ]


def test_an_evaluation_is_before_the_first_step_also_where_it_is_written_after_it(run):
    metrics = Metrics(run)
    train(metrics, 0, 0.3)
    evaluate(run, metrics, 0, 0.25, 0.3, ["131", "42", "188", "30"])
    train(metrics, 1, 0.5)
    evaluate(run, metrics, 1, 0.5, 0.6, ["131", "42", "188", "20"])
    evaluate(run, metrics, 2, 1.0, 0.9, ["132", "42", "198", "20"])
    summary = summarize(run)
    assert summary.evaluations[0].rewards == [("before", 0.25), ("step 1", 0.5), ("after", 1.0)]
    assert [label for label, _, _ in summary.transcripts[0].answers] == ["before", "after"]


def test_time_is_from_the_beginning_of_the_first_step(run):
    rows = [
        {"eval/col": 0.2, "eval/step": 0, "time": 90.0},
        {"perf/step_time": 4.0, "rollout/step": 0, "time": 104.0},
        {"perf/step_time": 2.0, "rollout/step": 1, "time": 106.0},
        {"eval/col": 0.4, "eval/step": 2, "time": 107.0},
    ]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert summarize(run).elapsed_s == 7.0
    run.config_file.write_text("data:\n  num_rollout: 1\n")
    run.metrics_file.write_text(json.dumps(rows[1]) + "\n")
    assert "─ 1 step in 4.0 s ─" in page(run)


def test_evaluations_without_training_are_before_it(run):
    evaluate(run, Metrics(run), 0, 0.25, 0.0, ["131", "42", "188", "30"])
    [col] = summarize(run).evaluations
    assert col.rewards == [("before", 0.25)]


def test_many_evaluations_keep_the_first_and_the_last(run):
    metrics = Metrics(run)
    for step in range(30):
        metrics.log({"eval/col": step / 100}, step=step)
        metrics.log({"perf/step_time": 1.0}, step=step)
    metrics.log({"eval/col": 0.99}, step=30)
    [labels] = [line for line in page(run).splitlines() if line.startswith("held out")]
    assert labels.split()[2] == "before" and labels.split()[-1] == "after"
    assert len(labels) < 80


def test_not_a_number_does_not_spoil_the_page(run):
    metrics = Metrics(run)
    for step, reward in enumerate([0.5, math.nan, 0.5]):
        train(metrics, step, reward)
    assert "reward         0.500  ▅ ▅  0.500" in page(run).splitlines()


def test_several_samples_of_a_prompt_are_one_transcript(run):
    samples = [Sample(prompt=asked, response="1", label="1", reward=0.5) for asked in "aabbccdd"]
    run.write_samples(0, {"letters": samples})
    assert [transcript.prompt for transcript in summarize(run).transcripts] == ["a", "b", "c"]
    assert "  step 0     0.50 1" in page(run).splitlines()


def test_damaged_metrics_are_named(run):
    run.metrics_file.write_text("{half\n{}\n")
    with pytest.raises(MetricsError, match=r"metrics\.jsonl:1"):
        summarize(run)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.yaml", "a: [", r"config\.yaml is damaged: while parsing"),
        ("config.yaml", "- a", r"config\.yaml is damaged: it holds no options by section"),
        ("samples/000000.jsonl", '{"set": 1}\n{"set', r"000000\.jsonl:2 is damaged: "),
    ],
)
def test_other_damaged_files_are_named(run, file, text, said):
    (run.path / file).write_text(text)
    with pytest.raises(RunDirError, match=said):
        summarize(run)


def test_reward_of_several_numbers_is_shown(run):
    run.write_samples(0, {"letters": [Sample(prompt="a", response="1", label="1", reward={"right": 1, "style": 0.2})]})
    assert "  step 0     {'righ…: 0.2} 1" in page(run).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_page_fits(ended, columns):
    Metrics(ended).log({"perf/sleep_time": 0.01, "perf/wake_up_time": 0.01}, step=3)
    lines = [line for line in page(ended, env={"COLUMNS": str(columns)}).splitlines() if str(ended.path) not in line]
    assert max(columns_of(line) for line in lines) < min(columns, 80)


def test_page_in_ascii(ended):
    text = page(ended, encoding="ascii")
    assert text.isascii()
    assert "reward         0.300  -+*#  0.900" in text
    assert "rrrrrrrr" in text and "+ <think>7+5=12</think>132" in text


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("47+85=", "47+85="),
        ("<|im_start|>user\n47+85=<|im_end|>\n<|im_start|>assistant\n", "47+85="),
        ("<|begin|><|header|>user<|/header|>\n\nhi<|eot|><|header|>assistant<|/header|>\n\n", "hi"),
        ("<|im_start|>user\nfirst<|im_end|>\n<|im_start|>user\nuser says<|im_end|>\n", "user says"),
        (
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "ho"},
            ],
            "hi",
        ),
        (
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}],
            "[image] what is it?",
        ),
        ([{"role": "system", "content": "only this"}], "only this"),
    ],
)
def test_question(prompt, asked):
    assert question(prompt) == asked


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "slime.observe", *arguments], capture_output=True, text=True, timeout=60, cwd=cwd
    )


def test_command_shows_the_latest_run(tmp_path, monkeypatch):
    import slime

    monkeypatch.setenv("PYTHONPATH", str(next(iter(slime.__path__)) + "/.."))
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    run = RunDir.create(tmp_path / "runs" / "newest")
    run.point_latest()
    train(Metrics(run), 0, 0.5)
    shown = command("latest", cwd=tmp_path)
    assert shown.returncode == 0 and shown.stdout.startswith("\n── newest ──"), shown.stderr
    refused = command("runs/nothing", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == (
        "runs/nothing holds no run: there is neither metrics.jsonl nor ledger.db in it; runs holds newest\n"
    )
