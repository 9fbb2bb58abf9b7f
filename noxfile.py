"""The project's checks. `python dev.py test` runs the default sessions; `nox -l` lists all of them.

Every session tests the installed wheel, built once per run by the session `build`, never the checkout.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "virtualenv"  # not uv, which does not read pip's configuration
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
DIST = ROOT / ".nox" / "dist"
RESULTS = ROOT / ".nox" / "results"
LIBRARIES = ["numpy", "strict", "dask", "jax", "torch"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
REQUIRED = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]
TORCH = os.environ.get("ROPE_ARRAY_TORCH") or GROUPS["torch"][0]


def needs(library: str) -> list[str]:
    """Return what has to be installed to test `library`, beside the wheel."""
    if library == "torch":
        return [TORCH]
    return [*EXTRAS.get(library, []), *GROUPS.get(library, [])]


def oldest(specs: list[str]) -> list[str]:
    """Turn lower bounds into pins."""
    return [spec.replace(">=", "==") for spec in specs]


def install(session: nox.Session, *specs: str) -> None:
    """Install `specs` and the wheel's dependencies, then the wheel alone, anew even if its version is not."""
    session.install(*REQUIRED, *specs)
    (wheel,) = DIST.glob("*.whl")
    pip = ("python", "-m", "pip", "install", "-q")
    session.run(*pip, "--no-deps", "--force-reinstall", str(wheel), silent=True)


def pytest(session: nox.Session, libraries: list[str], *args: str) -> None:
    """Run pytest on the installed wheel; no test executed is a failure, unless the caller chose the tests."""
    name = re.sub(r"\W+", "-", session.name).strip("-")
    workers = ("-n", "auto") if not session.posargs else ()  # one for each core, but not beside a debugger
    report = (f"--junitxml={RESULTS / name}.xml", "-o", f"junit_suite_name={session.name}")
    session.run(
        *("python", "-P", "-m", "pytest", f"--libraries={','.join(libraries)}", *report, *workers),
        *(*args, *session.posargs),
        env={"PYTHONSAFEPATH": "1"},  # the checkout's rope_array must not shadow the wheel's
        success_codes=[0, 5] if session.posargs else [0],
    )


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the sdist, and the wheel from it."""
    session.install("build", *PYPROJECT["build-system"]["requires"])
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", f"--outdir={DIST}", silent=True)


@nox.session(requires=["build"])
@nox.parametrize("library", [*LIBRARIES, "all"], ids=[*LIBRARIES, "all"])
def tests(session: nox.Session, library: str) -> None:
    """Test with one library beside NumPy; `all` runs the tests that need several."""
    if library == "all":
        install(session, *GROUPS["test"], *(spec for name in LIBRARIES for spec in needs(name)))
        pytest(session, LIBRARIES, "-m", "several")
    else:
        install(session, *GROUPS["test"], *needs(library))
        pytest(session, [library])


@nox.session(requires=["build"], reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Check the wheel's contents, and that it works with no optional library."""
    (path,) = DIST.glob("*.whl")
    session.install(str(path))  # no extras, in a clean environment: pip finds what the wheel asks for
    session.run("python", "-m", "pip", "check", silent=True)
    session.install(*GROUPS["test"])
    pytest(session, ["numpy"], f"--wheel={path}", "tests/test_wheel.py")


@nox.session(name="tests-min", requires=["build"])
def tests_min(session: nox.Session) -> None:
    """Test with the oldest supported versions; without torch, whose old wheels are CUDA builds."""
    if sys.version_info >= (3, 13):
        session.skip("NumPy 2.0 has wheels up to Python 3.12 only: run this with Python 3.11 or 3.12")
    libraries = [name for name in LIBRARIES if name != "torch"]
    bounds = [*REQUIRED, *(spec for name in libraries for spec in needs(name))]
    install(session, *GROUPS["test"], *oldest(bounds))
    pytest(session, libraries)


@nox.session(requires=["build"])
def models(session: nox.Session) -> None:
    """Compare every rotary class of transformers, and whole models, with what is read from their configs."""
    session.install(TORCH)  # first and alone, as transformers would bring another build
    install(session, *GROUPS["test"], TORCH, *GROUPS["models"])
    pytest(session, ["numpy", "torch"], "--models", "tests/test_hf.py", "tests/test_hf_models.py")


@nox.session(requires=["build"], default=False)
def peers(session: nox.Session) -> None:
    """Compare with other implementations: Hugging Face, ONNX, Meta's complex form, rotary-embedding-torch."""
    session.install(TORCH)  # first and alone, as a peer would bring another build
    install(session, *GROUPS["test"], TORCH, *GROUPS["peers"])
    pytest(session, ["numpy", "torch"], "--peers", "tests/test_peers.py")


@nox.session(requires=["build"], default=False)
def scoreboard(session: nox.Session) -> None:
    """Run the conformance suite on other implementations; writes docs/scoreboard.md, README.md's table."""
    session.install(TORCH)  # first and alone, as a peer would bring another build
    install(session, TORCH, *GROUPS["peers"], *GROUPS["scoreboard"])
    # flash-attn's setup needs PyTorch, and would compile for a GPU what is not used here.
    alone = ("--no-deps", "--no-build-isolation", *GROUPS["scoreboard-alone"])
    session.install(*alone, env={"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"})
    session.run("python", "bench/scoreboard.py", *session.posargs)


@nox.session(requires=["build"], default=False)
@nox.parametrize("library", LIBRARIES, ids=LIBRARIES)
def long(session: nox.Session, library: str) -> None:
    """Try many times as many random examples, and every float32 remainder."""
    install(session, *GROUPS["test"], *needs(library))
    name = "array_api_strict" if library == "strict" else library
    for script in ("random_examples", "exhaustive"):
        session.run("python", f"bench/{script}.py", "--libraries", name)


@nox.session(requires=["build"])
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors, and run its examples."""
    install(session, *GROUPS["docs"])
    out = ROOT / "docs" / "_build"
    for builder in ("html", "doctest"):
        session.run(
            "sphinx-build", "-qW", "-b", builder, "docs", str(out / builder), silent=builder == "doctest"
        )


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session(requires=["build"], default=False)
def types(session: nox.Session) -> None:
    """Check types, strictly, on the installed wheel: the checkout has `backends` in another place."""
    install(session, *GROUPS["types"])
    with session.chdir(session.create_tmp()):
        session.run("mypy", f"--config-file={ROOT / 'pyproject.toml'}", "-p", "rope_array", *session.posargs)
