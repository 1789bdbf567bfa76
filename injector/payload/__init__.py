"""The payload: the agent with an interpreter, loader and libraries of its own, to be put into any image.

It is one directory, placed anywhere: no libc, Python or shell of the image is used, and no part of the
payload shows in the environment of the commands that the agent runs.

    bin/python3, lib/    CPython, its standard library as far as an agent needs it, and all shared libraries
    lib/ld.so            their loader
    agent/               a directory that the interpreter executes: entry.py, orchard.injector.agent, aiohttp
"""
