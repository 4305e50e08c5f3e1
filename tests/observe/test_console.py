"""What is printed: on a pseudo-terminal as a person sees it, and in a file as a log keeps it."""

import fcntl
import io
import math
import os
import pty
import re
import struct
import termios
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.observe import Console, console
from slime.observe.table import ROWS_A_HEADER
from slime.observe.terminal import columns_of

RL = {
    "rollout/raw_reward": 0.734,
    "rollout/response_len/mean": 14.2,
    "perf/longest_sample_tokens_per_sec": 1234.4,
    "perf/rollout_time": 0.37,
    "perf/train_time": 0.19,
    "perf/update_weights_time": 0.03,
    "perf/step_time": 0.6,
    "train/train_rollout_logprob_abs_diff": 3e-6,
    "train/train_rollout_logprob_abs_diff_max": 1.23e-5,
}
SFT = {
    "train/loss": 1.5,
    "train/lr-pg_0": 1e-3,
    "train/grad_norm": 0.53,
    "perf/actor_train_tok_per_s": 12345.0,
    "perf/train_time": 0.05,
}
CONTROL = re.compile(r"[^\n -~\u00a1-\uffff]")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


class Log(io.TextIOWrapper):
    """A file, as a log has it."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)

    @property
    def text(self):
        return self.buffer.getvalue().decode(self.encoding)


class Screen:
    """A real pseudo-terminal; `text` is all that was written to it."""

    def __init__(self, columns=80):
        self._main, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = open(worker, "w", encoding="utf-8")
        self.text = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self._main, 65536)
            except OSError:  # the other end is closed
                return
            self.text += data.decode("utf-8")

    def close(self):
        self.stream.close()
        self._reader.join()
        os.close(self._main)

    @property
    def lines(self):
        """What stays on the screen: escape sequences done, colours off, without the newline's carriage return."""
        text = re.sub(r"\x1b\[[\d;]*m", "", self.text).replace("\r\n", "\n")
        return [line.rsplit("\x1b[2K", 1)[-1] for line in text.split("\n")]


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def screen():
    screen = Screen()
    yield screen
    if not screen.stream.closed:
        screen.close()


def test_step_lines_up_under_its_header(log):
    Console(log).step(12, RL)
    assert log.text.splitlines() == [
        "",
        "                         response slowest   ──────── seconds ───────── log-prob",
        " step reward               length   tok/s rollout  train   sync   step     diff",
        "   12  0.734 ████████▏       14.2    1234    0.37   0.19   0.03   0.60  1.2e-05",
    ]


def test_evaluation_is_in_the_column_of_the_rewards(log):
    console = Console(log)
    console.step(19, RL)
    console.eval(
        20,
        {
            "eval/col": 0.694,
            "eval/col/response_len/mean": 13.5,
            "eval/col/thinking_ratio": 0.65,
            "eval/col-pass@8": 0.9,
            "eval/step": 20,
        },
    )
    assert log.text.splitlines()[-2:] == [
        "   19  0.734 ████████▏       14.2    1234    0.37   0.19   0.03   0.60  1.2e-05",
        "   20  0.694 ███████▋     held out: col · thinking 65% · pass@8 0.900",
    ]


def test_supervised_step_shows_its_loss(log):
    Console(log).step(100, SFT)
    assert log.text.splitlines() == [
        "",
        "                                             learning gradient         seconds",
        " step    loss                                    rate     norm   tok/s   train",
        "  100  1.5000 ██████████████████████████████  1.0e-03    0.530   12345    0.05",
    ]


def test_supervised_step_with_a_reward_that_means_nothing_shows_its_loss(log):
    Console(log).step(100, SFT | {"rollout/raw_reward": 0.0})
    assert "learning" in log.text


def test_header_comes_again_when_it_has_scrolled_away_and_not_before(log):
    console = Console(log)
    for step in range(ROWS_A_HEADER + 1):
        console.step(step, RL)
    assert log.text.count("seconds") == 2
    console.step(99, RL)
    assert log.text.count("seconds") == 2
    console.say("checkpoint saved")
    console.step(100, RL)
    assert log.text.count("seconds") == 2
    console.say("\n".join("saved" for _ in range(ROWS_A_HEADER)))
    console.step(101, RL)
    assert log.text.count("seconds") == 3


def test_missing_metrics_are_dashes(log):
    Console(log).step(0, {"rollout/raw_reward": 0.5})
    assert log.text.splitlines()[-1].split() == ["0", "0.500", "█████▌", *"–" * 7]


def test_mean_log_prob_difference_stands_in_for_the_largest(log):
    Console(log).step(0, {"rollout/raw_reward": 0.5, "train/train_rollout_logprob_abs_diff": 3e-6})
    assert log.text.splitlines()[-1].endswith("3.0e-06")


@given(
    st.integers(0, 99_999),
    st.dictionaries(st.sampled_from(sorted({**RL, **SFT})), st.floats(width=32) | st.integers(0, 10**9)),
    st.integers(20, 200),
)
def test_lines_fit_whatever_the_numbers(step, metrics, columns):
    log = Log()
    console = Console(log)
    console.terminal._columns = str(columns)
    console.step(step, metrics)
    console.eval(step, {"eval/a-rather-long-name-of-a-held-out-set": 0.5})
    console.close()
    assert all(columns_of(line) <= columns for line in log.text.splitlines())


def test_fast_supervised_steps_share_a_line_and_the_last_one_has_its_own(log):
    console = Console(log)
    for step in range(500):
        console.step(step, SFT | {"train/loss": 2 / (1 + step)})
    console.close()
    steps = [int(line.split()[0]) for line in log.text.splitlines() if line[:5].strip().isdigit()]
    assert steps[0] == 0 and steps[-1] == 499
    assert len(steps) < 400


def test_every_step_of_reinforcement_learning_has_its_line(log):
    console = Console(log)
    for step in range(50):
        console.step(step, RL)
    assert [int(line.split()[0]) for line in log.text.splitlines() if line[:5].strip().isdigit()] == list(range(50))


def test_log_has_whole_plain_lines(log):
    console = Console(log)
    with console.phase("starting 1 engine"):
        console.warn("the disk is slow")
    with console.phase("rollout 0", brief=True):
        pass
    console.step(0, RL)
    assert not CONTROL.search(log.text)
    warning, phase = log.text.splitlines()[:2]
    assert warning == "warning: the disk is slow" and re.fullmatch(r"starting 1 engine \.\.\. \d\.\d s", phase)
    assert "rollout 0" not in log.text


def test_a_note_is_of_the_innermost_phase(log):
    told = Console(log)
    told.note("of none")
    with told.phase("step") as step, told.phase("waiting for rollout 3") as waiting:
        told.note("41 of 64 groups")
        assert waiting.status().endswith("  41 of 64 groups") and "groups" not in step.status()


def test_phase_that_lasts_says_in_a_log_that_it_has_begun_and_now_and_then_that_it_goes_on(log, monkeypatch):
    monkeypatch.setattr(console, "SAY_AFTER_S", 0.05)
    monkeypatch.setattr(console, "SAY_EVERY_S", 0.05)
    with Console(log).phase("starting 1 engine") as phase:
        phase.note("loading weights")
        while "so far" not in log.text:
            time.sleep(0.01)
    begun, *before, last = log.text.splitlines()
    assert begun == "starting 1 engine ..." and before
    assert all(re.fullmatch(r"starting 1 engine \.\.\. \d\.\d s so far, loading weights", line) for line in before)
    assert re.fullmatch(r"starting 1 engine \.\.\. \d\.\d s", last)


@pytest.mark.parametrize(("error", "how"), [(ValueError, "failed after"), (KeyboardInterrupt, "interrupted after")])
def test_phase_that_ends_badly_says_so_and_leaves_no_thread(log, error, how):
    before = threading.active_count()
    with pytest.raises(error), Console(log).phase("starting 1 engine"):
        raise error
    assert re.fullmatch(rf"starting 1 engine \.\.\. {how} \d\.\d s\n", log.text)
    assert threading.active_count() == before


def test_terminal_shows_the_phase_that_goes_on_and_then_what_it_took(screen):
    console = Console(screen.stream)
    with console.phase("starting 1 engine") as phase:
        phase.note("loading weights")
        while "loading weights" not in screen.text:
            time.sleep(0.01)
        console.say("a line above")
    with console.phase("rollout 0", brief=True):
        while "rollout 0" not in screen.text:
            time.sleep(0.01)
    screen.close()
    kept = [line for line in screen.lines if line]
    assert kept[0] == "a line above"
    assert re.fullmatch(r"✓ starting 1 engine \.\.\. \d\.\d s", kept[1])
    assert kept[2:] == []


def test_terminal_has_colours_unless_no_color(screen, monkeypatch):
    Console(screen.stream).step(0, RL)
    screen.stream.flush()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Screen()
    Console(plain.stream).step(0, RL)
    plain.close()
    screen.close()
    assert "\x1b[32m" in screen.text
    assert "\x1b[" not in plain.text.replace("\x1b[2K", "")


def test_dumb_terminal_is_treated_as_a_log(screen, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Console(screen.stream).phase("starting 1 engine"):
        pass
    screen.close()
    assert re.fullmatch(r"starting 1 engine \.\.\. \d\.\d s\r\n", screen.text)


def test_narrow_terminal_leaves_columns_out(monkeypatch):
    narrow = Screen(columns=60)
    Console(narrow.stream).step(12, RL)
    narrow.close()
    row = [line for line in narrow.lines if line][-1]
    assert row.split() == ["12", "0.734", "1234", "0.37", "0.19", "0.03", "1.2e-05"] and len(row) < 60


def test_wide_terminal_gives_the_bar_more_room():
    wide = Screen(columns=100)
    Console(wide.stream).step(12, RL)
    wide.close()
    assert max(len(line) for line in wide.lines) > 90
    assert wide.text.count("█") == 22  # .734 of 30


def test_stream_without_block_characters_gets_ascii():
    log = Log("ascii")
    console = Console(log)
    console.step(12, RL)
    console.eval(13, {"eval/col": 0.5, "eval/col/thinking_ratio": 0.1})
    assert log.text.splitlines()[-2:] == [
        "   12  0.734 ########        14.2    1234    0.37   0.19   0.03   0.60  1.2e-05",
        "   13  0.500 ######       held out: col | thinking 10%",
    ]


def test_not_a_number_stands_out():
    screen = Screen()
    Console(screen.stream).step(0, RL | {"rollout/raw_reward": math.nan})
    screen.close()
    assert "\x1b[31;1m   nan\x1b[0m" in screen.text
