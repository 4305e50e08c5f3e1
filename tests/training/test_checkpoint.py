"""Checkpoints: a run that is resumed does what it would have done, under any layout, and whenever a save was killed."""

from __future__ import annotations

import json
import random
import time

import pytest

from slime.config import checkpoint_dir
from slime.tiny import write_checkpoint
from tests.distributed import processes, run_ranks
from tests.models.tiny import make_checkpoint
from tests.training.checkpoint_ranks import (
    kept,
    load_at,
    refusals_to_load,
    save_at,
    save_shifted,
    scored_by,
    several,
    six_against_three_and_three,
    spoil,
    squares,
    too_large,
    twice,
)
from tests.training.saving import save_for_ever

DECAY = ["--lr-warmup-iters", "3", "--lr-decay-style", "cosine", "--lr-decay-iters", "12"]
TP2 = ["--tensor-model-parallel-size", "2"]
PP2 = ["--pipeline-model-parallel-size", "2"]
EP2 = ["--expert-model-parallel-size", "2"]
DEADLINE = 280.0


# Six rollouts are three and, resumed, three.

BUCKETS = ["--overlap-grad-reduce", "--bucket-size", "20000"]  # all but the last are padded
KL = ["--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k3"]
FOLLOWS = "a reference that follows"
ALONE = {
    "float32": DECAY,
    "bfloat16": [*DECAY, "--bf16"],
    "without distributed optimizer": [*DECAY, "--bf16", "--no-use-distributed-optimizer"],
    "CPU Adam": [*DECAY, "--bf16", "--optimizer-cpu-offload"],
    "CPU Adam in pieces": [*DECAY, "--bf16", "--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d"],
    "half of Adam on the CPU": [*DECAY, "--bf16", "--optimizer-cpu-offload", "--optimizer-offload-fraction", "0.5"],
    "resetting the optimizer": ["--reset-optimizer-states"],
    "gradients in several buckets": BUCKETS,
}
TOGETHER = {"DP2": DECAY, "TP2": TP2, "PP2 in bfloat16": [*PP2, "--bf16"]}


@pytest.fixture(scope="module")
def tied(directory):
    """With an embedding that PP gives a bucket of its own, of a size that is padded."""
    return str(make_checkpoint(directory / "tied", "tied"))


@pytest.fixture(scope="module")
def together(model, moe, tied, directory):
    """What two ranks do, one after another in the same processes: starting those takes longer."""
    resharded, experts = str(directory / "resharded"), str(directory / "experts")
    calls = {
        "six": (six_against_three_and_three, model, str(directory / "six-together"), TOGETHER),
        "saved": (save_at, model, resharded, TP2),
        "loaded": (load_at, model, resharded, {"PP2": PP2, "DP2": []}),
        "experts": (save_at, moe, experts, EP2),
        "experts there": (squares, moe, [*EP2, "--load", experts]),
        "tied six": (six_against_three_and_three, tied, str(directory / "six-tied"), {"PP2": PP2}),
        "experts' six": (six_against_three_and_three, moe, str(directory / "six-experts"), {"MoE EP2": EP2}),
        "twice": (twice, model, str(directory / "twice-together"), DECAY),
    }
    return run_ranks(several, 2, calls, deadline=DEADLINE), resharded, experts


@pytest.fixture(scope="module")
def alone(model, moe, directory, together):
    """What one rank does, some of it with what two ranks saved."""
    _, resharded, experts = together
    small, nowhere, spoiled = (str(directory / name) for name in ("small", "nowhere", "spoiled"))
    bfloat16, frozen, shifted = (str(directory / name) for name in ("bfloat16", "frozen", "shifted"))
    deep = str(write_checkpoint(directory / "deep", num_layers=4))
    following = {FOLLOWS: ["--bf16", *KL, "--ref-update-interval", "2", "--ref-load", model]}
    loads = {
        "deeper": (deep, ["--load", small]),
        "without optimizer": (model, ["--load", small]),
        "as weights": (model, ["--load", small, "--finetune"]),
        "deeper reference": (deep, ["--ref-load", small, *KL]),
        "lost state": (model, ["--load", f"{spoiled}/lost-state"]),
        "lost state's weights": (model, ["--load", f"{spoiled}/lost-state", "--finetune"]),
        "lost state's reference": (model, ["--ref-load", f"{spoiled}/lost-state", *KL]),
        "broken state": (model, ["--load", f"{spoiled}/broken-state"]),
        "lost model": (model, ["--load", f"{spoiled}/lost-model", "--no-load-optim"]),
        "of others": (model, ["--load", f"{spoiled}/of-others"]),
        "empty": (model, ["--load", nowhere]),
        "step": (model, ["--load", small, "--ckpt-step", "7"]),
        "precision-aware": (model, ["--use-precision-aware-optimizer", "--bf16"]),
        "fresh": (model, ["--load", nowhere, "--allow-fresh-start"]),
        "reference": (model, ["--load", nowhere, "--ref-load", model]),
        "another optimizer": (model, ["--bf16", "--load", bfloat16, "--no-use-distributed-optimizer"]),
        "another optimizer's weights": (
            model,
            ["--bf16", "--load", bfloat16, "--no-use-distributed-optimizer", "--no-load-optim"],
        ),
        "more trained": (model, ["--load", frozen]),
        "shifted": (model, ["--load", shifted]),
        "shifted, its weights": (model, ["--load", shifted, "--no-load-optim"]),
        "experts": (moe, ["--load", experts]),
        "experts' weights": (moe, ["--load", experts, "--no-load-optim"]),
    }
    calls = {
        "six": (six_against_three_and_three, model, str(directory / "six-alone"), ALONE | following),
        "loaded": (load_at, model, resharded, {"one rank": []}),
        "twice": (twice, model, str(directory / "twice-alone"), ["--bf16", "--deterministic-mode"]),
        "kept": (kept, model, str(directory / "kept")),
        "too large": (too_large, model, str(directory / "too-large")),
        "small": (save_at, model, small, ["--no-save-optim"]),
        "spoiled": (spoil, small, spoiled),
        "bfloat16": (save_at, model, bfloat16, ["--bf16"]),
        "shifted": (save_shifted, model, shifted, ["--bf16", *BUCKETS]),
        "frozen": (save_at, model, frozen, ["--freeze-params-name-list", "linear_fc2", "linear_proj"]),
        "offloaded": (load_at, model, bfloat16, {"CPU Adam": ["--bf16", "--optimizer-cpu-offload"]}),
        "scored": (scored_by, model, str(directory / "scored"), [*KL, "--use-opd", "--opd-type", "megatron"]),
        "refused": (refusals_to_load, loads),
        "experts here": (squares, moe, ["--load", experts, "--no-load-optim"]),
    }
    return run_ranks(several, 1, calls, deadline=DEADLINE)[0]


@pytest.mark.parametrize("case", [*ALONE, FOLLOWS])
def test_resumed_run_is_the_same_to_the_last_bit(case, alone):
    assert_same(*alone["six"][case])


@pytest.mark.parametrize("case", TOGETHER)
def test_resumed_run_of_two_ranks_is_the_same_to_the_last_bit(case, together):
    for rank in together[0]:
        assert_same(*rank["six"][case])


def test_resumed_experts_are_the_same_to_the_last_bit(together):
    for rank in together[0]:
        assert_same(*rank["experts' six"]["MoE EP2"])


def test_resumed_tied_embeddings_of_two_stages_are_the_same_to_the_last_bit(together):
    for rank in together[0]:
        assert_same(*rank["tied six"]["PP2"])


def assert_same(differences, whole, resumed):
    assert differences == []
    assert len(whole) == 6 and whole == resumed


@pytest.mark.parametrize("case", ["CPU Adam", "CPU Adam in pieces", "half of Adam on the CPU"])
def test_the_optimizer_on_the_cpu_does_what_that_on_the_device_does(case, alone):
    _, steps, _ = alone["six"][case]
    assert steps == alone["six"]["bfloat16"][1]


def test_the_optimizer_on_the_cpu_goes_on_from_that_on_the_device(alone):
    assert alone["offloaded"]["CPU Adam"] == alone["bfloat16"]


@pytest.mark.parametrize("layout", ["PP2", "DP2", "one rank"])
def test_another_layout_goes_on_from_two_tensor_parallel_ranks(layout, together, alone):
    first = together[0][0]
    found = (alone if layout == "one rank" else first)["loaded"][layout]
    assert found == {name: pytest.approx(value, rel=1e-5, abs=1e-6) for name, value in first["saved"].items()}


def test_a_reference_or_teacher_is_the_same_from_a_checkpoint(alone):
    by_model, by_checkpoint = alone["scored"]
    assert by_model == by_checkpoint
    assert by_model[0]["train/kl_loss"] > 0


def test_experts_go_on_elsewhere_without_their_optimizer_state(alone, together):
    said = alone["refused"]
    assert "saved with --expert-model-parallel-size 2, and Megatron can't divide the optimizer state" in said["experts"]
    assert said["experts' weights"] == ""
    assert alone["experts here"] == together[0][0]["experts there"]


def test_two_runs_are_the_same_to_the_last_bit(alone, together):
    """And so is what they recorded as trained on."""
    assert [rank["twice"] for rank in [alone, *together[0]]] == [([], True, [])] * 3


# What is kept, and what is refused.


def test_only_the_newest_are_kept_and_writing_in_the_background_keeps_the_weights_of_its_moment(alone):
    after, files, wrong = alone["kept"]
    assert after == ["iter_0000002", "iter_0000003", checkpoint_dir.MARKER]
    assert {".metadata", "metadata.json", "state.json", "config.json"} < set(files)
    assert wrong == []


def test_what_can_not_be_written_says_so_and_leaves_the_last_good_one(alone, directory):
    said, after = alone["too large"]
    assert said.startswith(f"can't write a checkpoint to {directory}/too-large: ") and " MB free" in said
    assert after == ["iter_0000000", checkpoint_dir.MARKER]


def test_what_does_not_fit_is_refused_with_every_reason(alone):
    said = alone["refused"]
    assert "num_hidden_layers in its config.json is 2, this model's is 4" in said["deeper"]
    assert "it holds no optimizer state: add --no-load-optim" in said["deeper"]
    assert "num_hidden_layers" not in said["without optimizer"]
    assert "num_hidden_layers in its config.json is 2" in said["deeper reference"]
    assert "optimizer" not in said["deeper reference"]
    assert said["empty"].endswith("nowhere has no checkpoint: there is no such directory")
    assert said["step"].endswith("has no checkpoint iter_0000007; it has iter_0000000")
    assert "its Adam is Transformer Engine's: transformer-engine computes on GPUs alone" in said["precision-aware"]
    assert [said[case] for case in ("as weights", "fresh", "reference")] == ["", "", ""]


def test_optimizer_state_that_does_not_fit_is_told_by_its_option_or_by_the_first_that_is_missing(alone):
    said = alone["refused"]
    assert "its optimizer state is of --use-distributed-optimizer: give that, or" in said["another optimizer"]
    assert said["another optimizer's weights"] == ""
    text = said["more trained"]
    assert "frozen/iter_0000000 can't be read: it has no optimizer.state." in text
    assert "linear_" in text and text.endswith("other parameters were trained: add --no-load-optim") and len(text) < 400


def test_master_weights_that_are_not_of_the_weights_are_refused(alone):
    """Such were written where gradients lie in several buckets."""
    said = alone["refused"]
    assert "shifted/iter_0000000 holds master weights of decoder.layers.1." in said["shifted"]
    assert "that are not of its weights" in said["shifted"] and said["shifted"].endswith(": add --no-load-optim")
    assert said["shifted, its weights"] == ""


def test_what_has_lost_its_state_or_its_model_is_refused_but_for_its_weights(alone):
    said = alone["refused"]
    assert "lost-state/iter_0000000 has lost its state.json, which says how far it is" in said["lost state"]
    assert "broken-state/iter_0000000/state.json can't be read (" in said["broken state"]
    assert "lost-model/iter_0000000 has lost its config.json" in said["lost model"]
    weights = ("lost state's weights", "lost state's reference", "of others")
    assert [said[case] for case in weights] == ["", "", ""]


# Case 35.


def test_killed_at_any_moment_a_save_leaves_the_last_good_one(model, tmp_path):
    """Each process checks what the one before it left, goes on saving, and is killed somewhere in it."""
    rng = random.Random(0)
    latest = -1
    for _ in range(3):
        ours, theirs = processes().Pipe(duplex=False)
        process = processes().Process(target=save_for_ever, args=(model, str(tmp_path), theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            assert ours.poll(120) and ours.recv() == latest
            deadline = time.monotonic() + 60
            while checkpoint_dir.rollouts(tmp_path)[-1:] in ([], [latest]):
                assert process.is_alive() and time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(rng.random() / 4)
        finally:
            process.kill()
            process.join()
            ours.close()
        found = checkpoint_dir.find(tmp_path)
        assert (found / ".metadata").stat().st_size
        newest = json.loads((found / "state.json").read_text())["progress"]["rollout_id"]
        assert newest > latest and found.name == checkpoint_dir.name_of(newest)
        latest = newest
