"""Register the pytest plugins that add the project's command-line options, for the tests of every folder."""

pytest_plugins = ["tests.library_warnings", "tests.sample", "tests.seeds"]
