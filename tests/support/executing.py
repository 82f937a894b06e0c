"""Carry out calls on an executor as the runner does, without steps."""

from nextlong.engine.executor import Resources


def carry_out(executor, call, arguments, *, at_once=None):
    """Yield `call(*a)` for each of `arguments` as they end, at most `at_once` together."""
    waiting, running, resources = list(arguments), 0, Resources(at_once=at_once)
    while waiting or running:
        while (
            waiting
            and (at_once is None or running < at_once)
            and executor.has_room(resources)
        ):
            executor.submit(
                0,
                call,
                *waiting.pop(0),
                resources=resources,
                label=f"call {len(waiting)}",
            )
            running += 1
        for _, result in executor.ended():
            running -= 1
            yield result
    executor.release_memory()
