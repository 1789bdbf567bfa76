"""Before and after software agents: tasks from benchmarks, releases and repositories, and their proof."""
