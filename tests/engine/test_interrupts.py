import signal
import threading

import pytest

from nextlong.engine.executor import Terminated, held_back, sigterm_raises


def terminate_twice():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(
            signal.SIGTERM
        )  # a second one does not disturb the cleaning up


def test_sigterm_raises_once_and_its_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), sigterm_raises():
        terminate_twice()
    assert signal.getsignal(signal.SIGTERM) == before


def test_ignored_sigterm_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with sigterm_raises():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_only_the_main_thread_sets_it_up():
    handlers = []

    def enter():
        with sigterm_raises():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)],
)
def test_what_comes_meanwhile_waits(number, raised):
    passed = []

    def start():
        with held_back():
            signal.raise_signal(number)
            passed.append("held back")
        passed.append("came too late")

    with pytest.raises(raised), sigterm_raises():
        start()
    assert passed == ["held back"]
