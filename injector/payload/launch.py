"""Command and environment that start a payload in any directory."""

ENVIRONMENT = {"LD_AUDIT": "", "LD_PRELOAD": ""}
"""Environment for the payload: an image may name libraries in these, and the loader would load them."""


def command(directory: str, *arguments: str) -> list[str]:
    """Return the command line that starts the payload in `directory`, an absolute path.

    The kernel executes the payload's loader, since the one that the interpreter names may not exist.
    """
    loader, libraries, python = f"{directory}/lib/ld.so", f"{directory}/lib", f"{directory}/bin/python3"
    # The image's own cache of libraries is of no concern to ours (--inhibit-cache); neither are the packages
    # (-S), variables (-I) and locale (-X utf8) that an interpreter would look for.
    loading = ["--argv0", python, "--inhibit-cache", "--library-path", libraries, python]
    return [loader, *loading, "-I", "-S", "-X", "utf8", f"{directory}/agent", *arguments]
