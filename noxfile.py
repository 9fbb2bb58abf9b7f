"""The project's checks. `python dev.py test` runs the default sessions; `nox -l` lists all of them.

Every session tests the installed wheel, built once per run by the session `build`, never the checkout.
.ci/sessions.toml has the sessions that run pytest or one script. The sessions that do more are functions.
"""

import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial, update_wrapper
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
sys.path.append(str(ROOT / ".ci"))

import reach  # noqa: E402

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "virtualenv"  # not uv, which does not read pip's configuration
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True  # a missing interpreter is an error, as a library is
# Install without compiling, to save time: "0" means --no-compile to pip. Python compiles a module when it is
# first imported, and writes the result. PYTHONDONTWRITEBYTECODE makes each child process compile PyTorch.
os.environ.setdefault("PIP_NO_COMPILE", "0")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

NOX = ROOT / ".nox"
DIST = NOX / "dist"
RESULTS = NOX / "results"
PYPROJECT = nox.project.load_toml("pyproject.toml")
ENVIRONMENTS = nox.project.load_toml("tests/long/versions.toml")  # of the session `versions`
ENVIRONMENTS.pop("files")
REQUIRED = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]
# Includes CMake and ninja, for machines where they are old or missing.
BUILDING = ["build", *PYPROJECT["build-system"]["requires"], "cmake", "ninja"]
TORCH = os.environ.get("ROPE_ARRAY_TORCH") or GROUPS["torch"][0]
# One environment for the sessions that need several libraries; each installs its own wheel into it.
SHARED = NOX / "shared" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
NIGHTLY = "ROPE_ARRAY_NIGHTLY"  # tests/conftest.py reads it too
NIGHT: list[str] = []  # the sessions that `nightly` runs
NOT_REACHED: list[str] = []  # the sessions that the change does not reach: see `runs`
# The libraries with a session of their own; a test compares with `session` of rope_array.testing._libraries.
LIBRARIES = ["numpy", "strict", "dask", "jax", "torch"]
# `RoPE.apply` runs the code of `apply`: the sessions `tests` judge both, other builds `apply` alone.
WITHOUT_ROPE = "not -RoPE-"
# Arguments that leave out the mark `primary`: checks of the suite that one target of a library shows for all.
WITHOUT_PRIMARY = ("-m", "not primary")
Run = Callable[[nox.Session], None]


def files(*names: str) -> tuple[str, ...]:
    """Return the paths of tests/test_<name>.py, in this order; a name may be a pattern."""
    by_name = (sorted(ROOT.glob(f"tests/test_{name}.py")) for name in names)
    return tuple(dict.fromkeys(path.relative_to(ROOT).as_posix() for paths in by_name for path in paths))


# The files whose tests can differ with an older library or without the kernel.
CONTRACT = files("conformance", "out", "apply", "accuracy")
# All files but those about the sources and the suite: no library and no kernel changes their results.
NOT_SAME_EVERYWHERE = tuple(
    f"--ignore={path}" for path in files("imports", "mutants", "suite", "suite_styles")
)


# ---- one session ----


def needs(library: str) -> list[str]:
    """Return the requirements of an extra and of a group with one name, without the wheel."""
    return [TORCH] if library == "torch" else [*EXTRAS.get(library, []), *GROUPS.get(library, [])]


def oldest(specs: list[str]) -> list[str]:
    """Turn lower bounds into pins."""
    return [spec.replace(">=", "==") for spec in specs]


def python(session: nox.Session, *args: str, **options: object) -> str:
    """Run the session's Python, or the shared Python if the session has no environment."""
    command = "python" if session.bin_paths else str(SHARED)
    return session.run(command, *args, external=not session.bin_paths, **options)


def install(session: nox.Session, *specs: str, dist: Path = DIST) -> None:
    """Install `specs` and the dependencies, then the wheel, even over the same version."""
    if session.bin_paths:  # the shared environment has them
        session.install(*REQUIRED, *specs)
    (wheel,) = dist.glob("*.whl")
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--force-reinstall")
    python(session, *pip, str(wheel), silent=True)


def set_up(session: nox.Session, groups: str, alone: str = "") -> None:
    """Install groups, and then a group `alone`, without the dependencies of its packages.

    PyTorch is installed first, as another package would bring another build. flash-attn's setup needs it,
    and would ask GitHub for a wheel, and compile CUDA code, which nothing here runs: a Triton kernel rotates.
    """
    if "torch" in groups.split():
        session.install(TORCH)
    install(session, *(spec for name in groups.split() for spec in needs(name)))
    if alone:
        env = {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
        session.install("--no-deps", "--no-build-isolation", *GROUPS[alone], env=env)


def pytest(session: nox.Session, libraries: str, *args: str, run_name: str = "", **env: str) -> None:
    """Run pytest on the installed wheel. Fail if no test ran, unless the caller selected tests.

    A session of several runs gives each a `run_name`. In continuous integration the session's own
    environment is removed afterwards, to spare disk.
    """
    title = f"{session.name} {run_name}".strip()
    name = re.sub(r"\W+", "-", title).strip("-")
    # One worker for each core; none if the caller has arguments, such as --pdb.
    workers = ("-n", "auto", "--dist", "worksteal") if not session.posargs else ()
    report = (f"--junitxml={RESULTS / name}.xml", "-o", f"junit_suite_name={title}")
    python(
        session,
        *("-P", "-m", "pytest", f"--libraries={libraries}", *report, *workers),
        *(*args, *session.posargs),
        env={
            "PYTHONSAFEPATH": "1",  # the checkout's rope_array must not shadow the wheel's
            "TORCHINDUCTOR_CACHE_DIR": str(Path(session.create_tmp()) / "inductor"),
            **env,
        },
        success_codes=[0, 5] if session.posargs else [0],
    )
    if os.environ.get("CI") and session.bin_paths:
        shutil.rmtree(session.virtualenv.location)


def at_night(nightly: Sequence[str], otherwise: Sequence[str]) -> Sequence[str]:
    """Return the arguments of `nightly`, or of another run."""
    return nightly if os.environ.get(NIGHTLY) else otherwise


def unpack(session: nox.Session) -> Path:
    """Unpack the sdist of the session `build` into an emptied folder."""
    folder = Path(session.create_tmp()) / "sdist"
    shutil.rmtree(folder, ignore_errors=True)
    (path,) = DIST.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def build_wheel(session: nox.Session, source: Path, out: Path, *args: str, code: int = 0, **env: str) -> str:
    """Build a wheel of `source` into the emptied folder `out`; return the build's output."""
    shutil.rmtree(out, ignore_errors=True)
    command = ("-m", "build", "--no-isolation", "--wheel", f"--outdir={out}", *args, str(source))
    env = {"CIBUILDWHEEL": "", "ROPE_ARRAY_REQUIRE_KERNEL": "", **env}
    return python(session, *command, env=env, silent=True, success_codes=[code])


# ---- when a session runs ----


def runs(
    when: str, name: str = "", *, shared: bool = False, reads: tuple[str, ...] = (), **options: Any
) -> Callable[[Run], Run]:
    """Return a decorator that defines a session, in its own environment or in the environment of `shared`.

    `when` has "push": by default; "night": by `nightly`, with every case; "reached": by default if the change
    reaches the tests that it `reads`, as it is about few files and takes minutes. Else it runs by name alone.

    The change is what no remote of the repository has. A clone of what has been pushed has none: who pushed
    it ran these sessions, ci.yml runs each of them for every push, and `nightly` runs them all. Without a
    remote nothing is known, and they run.
    """

    def define(run: Run) -> Run:
        by_default = "push" in when or ("reached" in when and reach.is_reached(reads, reach.changed_paths()))
        options["requires"] = [*options.get("requires", ["build"]), *["shared"] * shared]
        if shared:
            options["venv_backend"] = "none"
        nox.session(run, name=name or run.__name__, default=by_default, **options)
        NIGHT.extend([name or run.__name__] * ("night" in when))
        NOT_REACHED.extend([name or run.__name__] * ("reached" in when and not by_default))
        return run

    return define


def bound(function: Callable[..., None], text: str | None, **arguments: object) -> Run:
    """Return a function of a session with its other arguments, and the text that `nox -l` prints."""
    run = update_wrapper(partial(function, **arguments), function)
    run.__doc__ = text
    return run


# ---- sessions that run pytest or one script ----

ROWS = {
    f"tests({name})": {
        "text": f"Test with {name} in an environment without the other libraries.",
        "when": "night",
        "groups": f"test {name}{' chunks' * (name == 'dask')}",
        "libraries": f"tests({name})",
    }
    for name in LIBRARIES
} | nox.project.load_toml(".ci/sessions.toml")


def run_row(session: nox.Session, row: dict[str, Any]) -> None:
    """Run the session of a row of sessions.toml."""
    set_up(session, row.get("groups", ""), row.get("alone", ""))
    if "script" in row:
        session.run("python", row["script"], *session.posargs)
    else:
        args = [*row.get("options", ()), *files(*row.get("files", ()))]
        pytest(session, row["libraries"], *at_night(row.get("night", args), args))


for _name, _row in ROWS.items():
    define = runs(
        _row.get("when", ""), _name, shared="groups" not in _row, reads=files(*_row.get("files", ()))
    )
    define(bound(run_row, _row["text"], row=_row))


# ---- builds and environments ----


@runs("", requires=[])
def build(session: nox.Session) -> None:
    """Build the sdist, and the wheel from it; with CI set, the kernel has to be in it."""
    if NOT_REACHED:
        session.log(
            f"left to ci.yml and nightly, as your change does not reach them: {', '.join(NOT_REACHED)}"
        )
    session.install(*BUILDING)
    shutil.rmtree(DIST, ignore_errors=True)
    args, env = [], {}
    if os.environ.get("CI"):
        env["ROPE_ARRAY_REQUIRE_KERNEL"] = "1"
        if sys.platform == "linux":  # other systems' compilers cannot be tried before a push
            args = ["-Ccmake.define.ROPE_ARRAY_WERROR=ON"]
    session.run("python", "-m", "build", "--no-isolation", f"--outdir={DIST}", *args, env=env, silent=True)
    if list(DIST.glob("*-none-any.whl")):
        session.warn("The C++ kernel could NOT be built: the sessions test a wheel without it.")


@runs("", requires=[])
def shared(session: nox.Session) -> None:
    """Install all libraries, and transformers, for the sessions that share an environment."""
    session.install(TORCH)  # first and alone, as transformers would bring another build
    groups = (*LIBRARIES, "test", "chunks", "models", "roformer")
    session.install(*REQUIRED, *BUILDING, *(spec for name in groups for spec in needs(name)))


@cache
def nearest_to_change() -> tuple[Collection[str], list[str], list[str]]:
    """Return the paths that have changed, the tests nearest to them, and the libraries to test with."""
    paths = reach.uncommitted_paths() or reach.changed_paths() or reach.git("diff", "--name-only", "HEAD~1")
    if not (tests := reach.tests_of(paths)):
        return paths, [], []
    # The libraries that the change or its nearest test names, in a mark too.
    marks = re.findall(r"\blibrary\(.*\)", (ROOT / tests[0]).read_text("utf-8"))
    words = reach.words_of(" ".join(["numpy", *paths, tests[0], *marks]))
    return paths, tests, [name for name in LIBRARIES if name in words]


def first(names: Sequence[str]) -> str:
    """Join the first names, and say how many more there are."""
    return ", ".join(names[:6]) + f" and {len(names) - 6} more" * (len(names) > 6)


@runs("", requires=[], venv_backend="none")
def plan(session: nox.Session) -> None:
    """Say what the session `changed` will run, and how long it takes."""
    paths, tests, libraries = nearest_to_change()
    if not tests:
        session.skip(f"no test reads what has changed: {first(sorted(paths)) or 'nothing'}")
    session.log(f"your change: {first(sorted(paths))}")
    if not SHARED.exists():
        session.log("once: install all libraries into .nox/shared, which takes minutes")
    first_time = not (ROOT / "build/changed").exists()
    session.log(f"build a wheel: {'a minute' if first_time else 'seconds; a minute if C++ has changed'}")
    count = sum((ROOT / test).read_text("utf-8").count("\ndef test_") for test in tests)
    session.log(f"with {', '.join(libraries)}, {count} test functions, the nearest first, for a minute:")
    session.log(first([Path(test).stem for test in tests]))


@runs("", shared=True, requires=["plan"])
def changed(session: nox.Session) -> None:
    """Test what your change reaches, the nearest first, for two minutes.

    The change: uncommitted files; if there are none, commits that no remote has, or else the last commit.
    """
    _, tests, libraries = nearest_to_change()
    if not tests:
        session.skip("no test reads what has changed")
    # For this processor alone, which takes half the time.
    args = ("-Cbuild-dir=build/changed", "-Ccmake.define.ROPE_ARRAY_THIS_PROCESSOR=ON")
    build_wheel(session, ROOT, NOX / "dist-changed", *args)
    install(session, dist=NOX / "dist-changed")
    options = ("--models", "--study", "--seconds=60", "--dist=load", "-m", "not primary and not slow")
    pytest(session, ",".join(libraries), *options, *tests)


@runs("push", reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Check the wheel's contents, and that it works with no optional library."""
    (path,) = DIST.glob("*.whl")
    session.install(str(path))  # no extras, in a clean environment: pip installs the wheel's requirements
    session.run("python", "-m", "pip", "check", silent=True)
    session.install(*GROUPS["test"])
    pytest(session, "numpy", f"--wheel={path}", *files("wheel"))


@runs("push, night", shared=True)
def pure(session: nox.Session) -> None:
    """Test the wheel of a build without a compiler, which fails if the kernel is required."""
    source, other, dist = unpack(session), Path(session.create_tmp()) / "dist", NOX / "dist-pure"
    no_compiler = {"CC": "false", "CXX": "false", "CMAKE_GENERATOR": "Ninja"}
    build_wheel(session, source, other, code=1, ROPE_ARRAY_REQUIRE_KERNEL="1", **no_compiler)
    build_wheel(session, source, other, code=1, CIBUILDWHEEL="1", **no_compiler)
    output = build_wheel(session, source, other, **no_compiler)
    if "the C++ kernel was NOT built" not in output:
        session.error(f"A build without a compiler does not say that the kernel is missing:\n{output}")
    build_wheel(session, source, dist, "-Cwheel.cmake=false", "-Cwheel.py-api=py3")
    (path,), (fallback,) = dist.iterdir(), other.iterdir()
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(fallback) as two:
        if (path.name, one.namelist()) != (fallback.name, two.namelist()):
            session.error("A build without a compiler makes a wheel that differs from the published wheel.")
    install(session, dist=dist)
    # The kernel serves eager NumPy and PyTorch; compiled functions and the backend array-api never call it.
    paths = at_night(NOT_SAME_EVERYWHERE, (*files("wheel"), *CONTRACT))
    selected = f"not compil and not array-api and {WITHOUT_ROPE}"
    pytest(session, "numpy,torch", f"--wheel={path}", *paths, "-k", selected, *at_night((), WITHOUT_PRIMARY))
    # Other sessions test JAX without the kernel: on several devices, and by the backend array-api.
    if os.environ.get(NIGHTLY):
        pytest(session, "jax", *files("jax"), "-k", "not eight and not processes", run_name="jax")


SANITIZED = files("native*", "conformance", "attention_inputs", "shift")


@runs("reached, night", shared=True, reads=SANITIZED)
def sanitize(session: nox.Session) -> None:
    """Test the kernel with GCC's address and undefined-behaviour sanitizers in it."""
    if sys.platform != "linux" or not (shutil.which("gcc") and shutil.which("g++")):
        session.skip("GCC's sanitizers are preloaded into Python, which works on Linux alone: run it there")
    args = ("-Ccmake.define.ROPE_ARRAY_SANITIZE=address,undefined", "-Cinstall.strip=false")
    env, dist = {"CC": "gcc", "CXX": "g++", "ROPE_ARRAY_REQUIRE_KERNEL": "1"}, NOX / "dist-sanitize"
    build_wheel(session, unpack(session), dist, *args, **env)
    install(session, dist=dist)
    found = (f"-print-file-name={name}.so" for name in ("libasan", "libstdc++"))
    # The kernel serves neither compiled functions nor the backend array-api.
    selected = f"not compile and not array-api and {WITHOUT_ROPE}"
    pytest(
        *(session, "numpy,torch", *SANITIZED, "-k", selected, *at_night((), WITHOUT_PRIMARY)),
        LD_PRELOAD=" ".join(session.run("gcc", arg, external=True, silent=True).strip() for arg in found),
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",  # Python and its libraries leak at exit
        UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
    )


@runs("push, night", "tests-min")
def tests_min(session: nox.Session) -> None:
    """Test with the oldest versions; without torch, whose old wheels are CUDA builds."""
    if sys.version_info >= (3, 13):
        session.skip("NumPy 2.0 has wheels up to Python 3.12 only: run this with Python 3.11 or 3.12")
    libraries = ENVIRONMENTS["oldest"]["oldest"]
    bounds = [*REQUIRED, *(spec for name in libraries for spec in needs(name))]
    install(session, *GROUPS["test"], *oldest(bounds))
    # tests(jax) tests 64 bits and compiled functions, with the newest version.
    selected = ("-k", f"not x64 and not jax:jit and {WITHOUT_ROPE}", *at_night((), WITHOUT_PRIMARY))
    pytest(session, ",".join(libraries), *at_night(NOT_SAME_EVERYWHERE, CONTRACT), *selected)


@runs("push, night", shared=True)
def triton(session: nox.Session) -> None:
    """Test PyTorch's kernel for GPUs by Triton's interpreter."""
    install(session)
    pip = ("-m", "pip")
    python(session, *pip, "install", "-q", *GROUPS["triton"], silent=True)
    try:  # Triton interprets all kernels of a process, or none
        paths = files("triton_traced", "triton", "triton_inputs", "conformance")
        pytest(session, "torch", "--gpu-code", *paths, "-k", "triton")
    finally:  # the other sessions of the shared environment test PyTorch without Triton
        python(session, *pip, "uninstall", "-qy", "triton", silent=True)


# ---- sessions that are not of a push ----


@runs("night")
def serving(session: nox.Session) -> None:
    """Test inside vLLM on the CPU, layers and engines with tiny models; layers of SGLang."""
    session.install(TORCH)  # first and alone, as another package would bring another build
    session.install("--no-deps", *GROUPS["serving-alone"], "packaging")
    requirements = session.run("python", "tests/serving/requirements.py", silent=True)
    install(session, TORCH, *GROUPS["test"], *requirements.split())
    # Warnings of vLLM's import are not ours.
    pytest(session, "numpy,torch", "--serving", "-W", "default", "tests/serving", *files("vllm"))


@runs("")
def roformer(session: nox.Session) -> None:
    """Run the study of the RoFormer paper, under an hour; writes docs/roformer.md."""
    set_up(session, "torch roformer")
    with session.chdir("bench"):
        session.run("python", "-m", "roformer", *(session.posargs or ["all"]))


@runs("")
def gpu(session: nox.Session) -> None:
    """Run the suite and bench/speed.py on an NVIDIA GPU; writes docs/speed/gpu.md."""
    if not shutil.which("nvidia-smi") or not session.run(
        "nvidia-smi", "-L", external=True, silent=True, success_codes=range(256)
    ).startswith("GPU "):
        session.error("This session needs an NVIDIA GPU and its driver: nvidia-smi finds none")
    set_up(session, "torch peers gpu", "gpu-alone")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for target in ("torch:cuda", "jax:gpu", "cupy"):
        report = RESULTS / f"gpu-{target.replace(':', '-')}.xml"
        session.run("python", "-P", "-m", "rope_array", "check", target, f"--junit={report}")
    session.run("python", "bench/speed.py", "--gpu", *session.posargs)


def long(session: nox.Session, library: str) -> None:
    """Try many more random examples, and every float32 remainder."""
    set_up(session, f"test {library}")
    times = "10" if library == "jax" else "100"  # JAX compiles every shape
    pytest(session, library, *files("invariants", "phase"), ROPE_ARRAY_EXAMPLES=times)
    name = "array_api_strict" if library == "strict" else library
    session.run("python", "tests/long/exhaustive.py", "--libraries", name)


for _name in LIBRARIES:
    runs("", f"long({_name})")(bound(long, long.__doc__, library=_name))


@runs("", shared=True)
def nightly(session: nox.Session) -> None:
    """Run the sessions of the night with all cases, whatever has changed: hours."""
    os.environ[NIGHTLY] = "1"
    for name in NIGHT:
        session.notify(name)


# ---- pages, style and types ----


@runs("push")
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors, and run its examples."""
    install(session, *GROUPS["docs"])
    out = ROOT / "docs" / "_build"
    for builder in ("html", "doctest"):
        # Both builders read the pages; the second gets them from the first.
        args = ("-b", builder, "-d", str(out / "doctrees"), "docs", str(out / builder))
        session.run("sphinx-build", "-qW", *args, silent=builder == "doctest")


@runs("push", requires=[])
def lint(session: nox.Session) -> None:
    """Check style and format, and the form, scripts and security of the workflows."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("jactionlint", "--strict-exit")
    session.run("zizmor", "--offline", "--no-progress", "--quiet", "--pedantic", ".github")


@runs("push")
def types(session: nox.Session) -> None:
    """Check types, strictly, on the installed wheel."""
    # The checkout has `backends` in another place.
    install(session, *GROUPS["types"])
    with session.chdir(session.create_tmp()):
        for checked in (("-p", "rope_array"), (str(ROOT / "tests" / "typing_cases.py"),)):
            session.run("mypy", f"--config-file={ROOT / 'pyproject.toml'}", *checked, *session.posargs)


# ---- releases and versions ----


@runs("night", requires=[])
def release(session: nox.Session) -> None:
    """Check what a release publishes, after `build`: before a release, and in `nightly`.

    release/check.py has the checks, and writes bench/results/release.json. Arguments after `--` run one of
    them: `-- published dist v0.1.0`.
    """
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    (cibuildwheel,) = re.findall(r"pypa/cibuildwheel@\w+ # v([\d.]+)", workflow)
    session.install(*REQUIRED, *BUILDING, *GROUPS["release"], f"cibuildwheel=={cibuildwheel}")
    session.run("python", "release/check.py", *(session.posargs or ["all"]))


def versions_of(session: nox.Session, name: str) -> None:
    """Test with the versions of an environment, and write its record."""
    environment = ENVIRONMENTS[name]
    newest, bounds = (
        [spec for library in environment.get(key, ()) for spec in needs(library)]
        for key in ("newest", "oldest")
    )
    pins = oldest([*REQUIRED, *bounds]) if bounds else []
    alone = [*environment.get("alone", ()), *(spec for spec in newest if spec == TORCH)]
    dist = DIST
    try:
        if alone:
            session.install(*alone)
        if "python" in environment:  # the wheel of the session `build` may be for nox's Python alone
            dist = NOX / "dist-python"
            session.install(*BUILDING)
            build_wheel(session, unpack(session), dist, ROPE_ARRAY_REQUIRE_KERNEL="1")
            session.log(f"built {next(dist.glob('*.whl')).name}")
        install(session, *GROUPS["test"], *alone, *newest, *pins, *environment.get("install", ()), dist=dist)
        session.run("python", "tests/long/versions.py", name, *session.posargs)
    finally:  # some take gigabytes
        shutil.rmtree(session.virtualenv.location)


for _name, _environment in ENVIRONMENTS.items():
    runs("", f"versions({_name})", python=_environment.get("python"))(
        bound(versions_of, f"Test with other versions: {_name} of tests/long/versions.toml.", name=_name)
    )


@runs("", venv_backend="none")
def versions(session: nox.Session) -> None:
    """Run all environments of tests/long/versions.toml: hours."""
    for name in ENVIRONMENTS:
        session.notify(f"versions({name})")
