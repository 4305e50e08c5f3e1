import socket

import pytest

from slime.cluster.trainers import Rank
from slime.config import load


def test_the_place_where_ranks_meet_is_nobody_elses_until_the_first_rank_closes():
    config = load(
        [
            "--hf-checkpoint",
            "model",
            "--debug-train-only",
            "--load-debug-rollout-data",
            "r-{rollout_id}",
            "--rollout-batch-size",
            "1",
            "--num-rollout",
            "1",
        ]
    )
    first = Rank(config, rank=0, world_size=2, host="127.0.0.1")
    address = first.meeting_point()
    with socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        first.close()
        other.bind(address)
