"""exact_match, on texts and on the tokens that the tiny model generates."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime.data.sample import Sample, Status
from slime.data.tokenizer import Tokenizer
from slime.rewards import RewardError
from slime.rewards.exact_match import exact_match
from slime.tiny.checkpoint import ID, VOCABULARY, write_checkpoint


def graded(response, label="132", status=Status.COMPLETED, prompt=""):
    return exact_match(None, Sample(prompt=prompt, response=response, label=label, status=status)).score


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("132", 1.0),
        (" 132\n", 1.0),
        ("133", 0.0),
        ("", 0.0),
        ("132 132", 0.0),
        ("<think>7+5=12 4+8+1=13</think>132", 1.0),
        ("<think>\nhm\n</think>\n\n132", 1.0),
        ("<think></think>132", 1.0),
        ("<think>132", 0.0),
        ("<think>a</think>132</think>", 0.0),
        ("<think>a</think></think>132", 0.0),
        ("<think>132</think>", 0.0),
        ("a</think>132", 0.0),
        ("132</think>", 0.0),
        ("1<think>a</think>132", 0.0),
    ],
)
def test_answers(response, reward):
    assert graded(response) == reward


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.COMPLETED])
def test_only_a_finished_response_is_right(status):
    assert graded("132", status=status) == 0.0


@pytest.mark.parametrize(("response", "reward"), [("a</think>132", 1.0), ("132", 0.0), ("a</think>b</think>132", 0.0)])
def test_thinking_that_the_prompt_opens(response, reward):
    assert graded(response, prompt="<|im_start|>assistant\n<think>\n") == reward


def test_labels_are_compared_as_text():
    assert graded("132", label=132) == 1.0 and graded("yes", label=" yes ") == 1.0


def test_a_sample_without_a_label_is_named():
    with pytest.raises(RewardError, match=r"sample 4 .*has no label.*--label-key"):
        exact_match(None, Sample(index=4, response="1", status=Status.COMPLETED))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(write_checkpoint(tmp_path_factory.mktemp("tiny")))


def token_reward(ids, label):
    """The same, decided on tokens: an end of turn, no or one well-formed thought before the answer."""
    if not ids or ids[-1] != ID["<|im_end|>"]:
        return 0.0
    ids = ids[:-1]
    if ids and ids[0] == ID["<think>"]:
        if ids.count(ID["</think>"]) != 1:
            return 0.0
        ids = ids[ids.index(ID["</think>"]) + 1 :]
    return float("".join(VOCABULARY[i] for i in ids) == label)


likely = st.sampled_from(
    [ID[token] for token in ("<think>", "</think>", "<|im_end|>", "<|im_start|>", "1", "3", "<pad>", "<unk>")]
)
responses = st.lists(likely | st.sampled_from([i for i in range(64) if not VOCABULARY[i].isspace()]), max_size=8)


@given(
    responses
    | st.builds(
        lambda thought, end: [ID["<think>"], *thought, ID["</think>"], ID["1"], ID["3"], *end], responses, responses
    )
)
@settings(max_examples=500, deadline=None)
def test_text_and_tokens_agree_on_whatever_is_generated(tokenizer, ids):
    """A rollout stops at the end of the turn, decodes what comes before it, and calls the response completed."""
    ended = ID["<|im_end|>"] in ids
    ids = ids[: ids.index(ID["<|im_end|>"]) + 1] if ended else ids
    (text,) = tokenizer.decode_responses([ids])
    status = Status.COMPLETED if ended else Status.TRUNCATED
    assert graded(text, label="13", status=status) == token_reward(ids, "13")
