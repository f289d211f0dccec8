"""Print the name of each failed test at once: a whole run takes an hour, and pytest-xdist lists failures at its end."""

from __future__ import annotations

import pytest

__all__: list[str] = []


class _Printer:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\nfailed: {report.nodeid}, in its {report.when}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist leaves it to the one that started it
        config.pluginmanager.register(_Printer(config))
