"""Which signals a run answers. No Ray is started."""

from __future__ import annotations

import signal

from slime.cluster.interrupt import Interrupt


def test_a_run_under_nohup_does_not_hear_that_its_terminal_is_gone():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt = Interrupt()
    try:
        interrupt.catch()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == interrupt._handle
    finally:
        interrupt.release()
        signal.signal(signal.SIGHUP, before)
