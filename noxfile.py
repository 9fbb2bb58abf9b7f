"""The project's checks. `python dev.py test` runs the default sessions; `nox -l` lists all of them.

Every session tests the installed wheel, built once per run by the session `build`, never the checkout.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import partial, update_wrapper
from pathlib import Path

import nox

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "virtualenv"  # not uv, which does not read pip's configuration
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True  # as a library that is missing
# Install without compiling, to save time: "0" means --no-compile to pip. Python compiles a module when it is
# first imported, and writes the result. PYTHONDONTWRITEBYTECODE makes each child process compile PyTorch.
os.environ.setdefault("PIP_NO_COMPILE", "0")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
DIST = ROOT / ".nox" / "dist"
PURE = ROOT / ".nox" / "dist-pure"
SANITIZED = ROOT / ".nox" / "dist-sanitize"
CHANGED = ROOT / ".nox" / "dist-changed"
OTHER_PYTHON = ROOT / ".nox" / "dist-python"
RESULTS = ROOT / ".nox" / "results"
LIBRARIES = ["numpy", "strict", "dask", "jax", "torch"]
# Of the session `tests(more)`: served by short backends or by none, and refused.
MORE = ["mlx", "ndonnx", "tensorflow", "marray", "sparse", "blosc2"]

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
SHARED = ROOT / ".nox" / "shared" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
NIGHTLY = "ROPE_ARRAY_NIGHTLY"  # tests/conftest.py reads it too
# RoPE.apply calls what `apply` calls, which the sessions `tests` show: other builds are judged by `apply`.
NOT_TWICE = "not -RoPE-"
# Arguments that leave out the checks of the suite that one target of a library shows for all: see
# tests/test_conformance.py.
COVER = ("-m", "not primary")
# A hash, for each session in READ_BY, of the files with which it last passed: committed. With the same files
# only `nightly` runs it, which also finds what new packages change. If the hash differs, the session runs.
PASSED = ROOT / ".ci" / "passed.json"
# Patterns of files; of a folder, all that is in it.
READ_BY = {
    "gpu-code": [
        *("pyproject.toml", "backends", "rope_array/*.py", "rope_array/_array_api", "rope_array/_spec"),
        *(
            f"tests/*{name}*"
            for name in ("cuda", "gpu_compile", "inductor", "native_cases", "offline", "triton", "xla")
        ),
    ],
    "proof": [
        *("proof", "backends/_native", "backends/cupy", "rope_array/_array_api", "rope_array/_spec"),
        *("tests/test_proof.py", "docs/numerics.md", "bench/results/*exhaustive*"),
    ],
    "sanitize": ["pyproject.toml", "CMakeLists.txt", "backends/_native", "tests/*native*"],
    "study": [
        *("pyproject.toml", "bench/roformer", "bench/results/*roformer*"),
        *("docs/roformer.md", "docs/pictures/roformer", "tests/*roformer*"),
    ],
}
# For `changed`: the tests that a change reaches first, as patterns of tests/test_<name>.py, and their
# libraries; the first folder or file that begins a path counts. A test file reaches itself.
SUITE = "suite* mutants command_check definition"
REACHED = {
    "backends/_native": ("native* jax_native conformance out", "numpy torch jax"),
    "backends/cubed": ("cubed", "dask cubed"),
    "backends/dask": ("dask conformance", "dask"),
    "backends/jax": ("jax* conformance", "jax"),
    "backends/torch": ("torch* conformance triton", "torch"),
    "backends": ("backends conformance", "numpy"),
    "rope_array/_command": ("command* demo", "numpy"),
    "rope_array/_config": ("config*", "numpy"),
    "rope_array/_demo": ("demo", "numpy"),
    "rope_array/_diagnose": ("diagnose", "numpy"),
    "rope_array/_spec": ("spec scaling maps errors phase definition conformance", "numpy dask"),
    "rope_array/config.py": ("config*", "numpy"),
    "rope_array/convert.py": ("convert", "numpy torch"),
    "rope_array/hf": ("hf*", "numpy torch"),
    "rope_array/plots": ("plots", "numpy"),
    "rope_array/positions": ("positions builders maps", "numpy"),
    "rope_array/testing": (SUITE, "numpy"),
    "rope_array/torch": ("torch_modules", "torch"),
    "rope_array/vllm": ("vllm", "torch"),
    "rope_array": ("conformance out rotation spec errors positions turns imports", "numpy strict"),
    "bench/roformer": ("roformer*", "numpy torch"),
    "bench": ("figures bench_gpu", "numpy torch"),
    "docs": ("docs readme figures", "numpy"),
    "README.md": ("docs readme figures", "numpy"),
    "tests/hf": ("hf*", "numpy torch"),
    "tests/jax_devices.py": ("jax", "jax"),
    "tests/mutants": ("mutants", "numpy"),
}
# The files whose tests can differ with an older library or without the kernel.
CONTRACT = [f"tests/test_{name}.py" for name in ("conformance", "out", "apply", "accuracy")]
# The files about the sources and the suite: no library and no kernel changes their results.
SAME_EVERYWHERE = [f"tests/test_{name}.py" for name in ("imports", "mutants", "suite", "suite_styles")]


def needs(library: str) -> list[str]:
    """Return the requirements for testing `library`, without the wheel."""
    if library == "torch":
        return [TORCH]
    return [*EXTRAS.get(library, []), *GROUPS.get(library, [])]


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


def install_alone(session: nox.Session, *specs: str) -> None:
    """Install `specs`, flash-attn among them, without their dependencies.

    flash-attn's setup needs PyTorch. It would ask GitHub for a wheel, and compile CUDA code, which nothing
    here runs: its rotation is a Triton kernel.
    """
    env = {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
    session.install("--no-deps", "--no-build-isolation", *specs, env=env)


def pytest(session: nox.Session, libraries: list[str], *args: str, part: str = "", **env: str) -> None:
    """Run pytest on the installed wheel. Fail if no test ran, unless the caller selected tests.

    A session of several runs names the `part` of each. In continuous integration the session's own
    environment is removed afterwards, to spare disk.
    """
    title = f"{session.name} {part}".strip()
    name = re.sub(r"\W+", "-", title).strip("-")
    # One worker for each core; none if the caller has arguments, such as --pdb.
    workers = ("-n", "auto", "--dist", "worksteal") if not session.posargs else ()
    report = (f"--junitxml={RESULTS / name}.xml", "-o", f"junit_suite_name={title}")
    python(
        session,
        *("-P", "-m", "pytest", f"--libraries={','.join(libraries)}", *report, *workers),
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


def content_of(name: str, root: Path = ROOT) -> str:
    """Return a hash of the paths and contents of the files that a session reads."""
    paths = {path for pattern in READ_BY[name] for path in root.glob(pattern)}
    paths |= {path for folder in paths if folder.is_dir() for path in folder.rglob("*")}
    content = hashlib.sha256()
    for path in sorted(paths, key=Path.as_posix):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyd"):
            lines = path.read_bytes().replace(b"\r\n", b"\n")  # as on Windows
            content.update(f"{path.relative_to(root).as_posix()} {len(lines)} ".encode() + lines)
    return content.hexdigest()


def passed_before(session: nox.Session, name: str, files: str) -> str:
    """Return why a session need not run: it has passed with these files; else ""."""
    record = json.loads(PASSED.read_text("utf-8")) if PASSED.exists() else {}
    if os.environ.get(NIGHTLY) or session.posargs or record.get(name) != files:
        return ""
    return "it has passed with these files, by .ci/passed.json; the session `nightly` runs it"


def record_pass(session: nox.Session, name: str, files: str) -> None:
    """Write the hash of a session's files, to be committed; not if a part of its tests was selected."""
    if not session.posargs:
        record = json.loads(PASSED.read_text("utf-8")) if PASSED.exists() else {}
        PASSED.write_text(json.dumps({**record, name: files}, indent=1, sort_keys=True) + "\n", "utf-8")


def cover_by_default() -> tuple[str, ...]:
    """Return COVER; in `nightly`, nothing."""
    return () if os.environ.get(NIGHTLY) else COVER


def by_default(*paths: str) -> list[str]:
    """Return `paths`; in `nightly`, arguments for all files but SAME_EVERYWHERE."""
    return [f"--ignore={path}" for path in SAME_EVERYWHERE] if os.environ.get(NIGHTLY) else list(paths)


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


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the sdist, and the wheel from it; in continuous integration, the kernel has to be in it."""
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


@nox.session(default=False)
def shared(session: nox.Session) -> None:
    """Install all libraries, transformers and the study's packages, for the sessions that share them."""
    session.install(TORCH)  # first and alone, as transformers would bring another build
    libraries = (spec for name in LIBRARIES for spec in needs(name))
    groups = (spec for name in ("test", "chunks", "models", "roformer") for spec in GROUPS[name])
    session.install(*REQUIRED, *BUILDING, *libraries, *groups)


@nox.session(requires=["build"], default=False)
@nox.parametrize("library", LIBRARIES, ids=LIBRARIES)
def tests(session: nox.Session, library: str) -> None:
    """Test with one library and NumPy, in an environment without the others."""
    chunks = GROUPS["chunks"] if library == "dask" else []
    install(session, *GROUPS["test"], *needs(library), *chunks)
    pytest(session, [library, "cubed"] if chunks else [library])


@nox.session(name="tests(all)", requires=["build", "shared"], venv_backend="none")
def tests_all(session: nox.Session) -> None:
    """Test with all libraries, in one environment; in `nightly`, after `tests`, what needs several."""
    install(session)
    pytest(session, [*LIBRARIES, "cubed"], *(("-m", "several") if os.environ.get(NIGHTLY) else ()))


def changed_paths() -> list[str]:
    """Return what differs from the upstream branch, if there is one, or else from the last commit."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    base = git("merge-base", "HEAD", "@{upstream}") or "HEAD"
    listed = git("diff", "--name-only", base), git("ls-files", "--others", "--exclude-standard")
    return "\n".join(listed).split()


def reached_by(paths: list[str]) -> tuple[list[str], list[str]]:
    """Return the test files that changed paths reach, and the libraries to run them with."""
    files, libraries = set(), set()
    for path in paths:
        if path.startswith("tests/test_"):
            found, libs = [path], "numpy strict dask jax torch"
        else:
            names, libs = next((REACHED[start] for start in REACHED if path.startswith(start)), ("", ""))
            found = [f"tests/test_{name}.py" for name in names.split()]
        libraries |= set(libs.split())
        files |= {file for pattern in found for file in ROOT.glob(pattern)}
    return sorted(map(str, files)), [name for name in [*LIBRARIES, "cubed"] if name in libraries]


@nox.session(requires=["shared"], venv_backend="none", default=False)
def changed(session: nox.Session) -> None:
    """Test what a change reaches first, in two minutes: REACHED has the tests of each folder.

    The change is what differs from the upstream branch, if there is one, or else from the last commit.
    """
    files, libraries = reached_by(changed_paths())
    if not files:
        session.skip("no test reads what has changed since the upstream branch or the last commit")
    session.log(f"with {', '.join(libraries)}: {' '.join(Path(file).stem for file in files)}")
    build_wheel(session, ROOT, CHANGED, "-Cbuild-dir=build/changed")
    install(session, dist=CHANGED)
    pytest(session, libraries, "--models", "--study", *files, *COVER)


@nox.session(name="tests(more)", requires=["build"])
def tests_more(session: nox.Session) -> None:
    """Test the libraries of the group `more`: the suite, and the tests that name them."""
    install(session, *GROUPS["test"], *GROUPS["more"])
    names = ("conformance", "libraries", "docs", "readme")
    pytest(session, MORE, *(f"tests/test_{name}.py" for name in names))


@nox.session(requires=["build"], reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Check the wheel's contents, and that it works with no optional library."""
    (path,) = DIST.glob("*.whl")
    session.install(str(path))  # no extras, in a clean environment: pip installs the wheel's requirements
    session.run("python", "-m", "pip", "check", silent=True)
    session.install(*GROUPS["test"])
    pytest(session, ["numpy"], f"--wheel={path}", "tests/test_wheel.py")


@nox.session(requires=["build", "shared"], venv_backend="none")
def pure(session: nox.Session) -> None:
    """Test the pure wheel: a build without a compiler makes it, or fails if the kernel is required."""
    source, other = unpack(session), Path(session.create_tmp()) / "dist"
    no_compiler = {"CC": "false", "CXX": "false", "CMAKE_GENERATOR": "Ninja"}
    build_wheel(session, source, other, code=1, ROPE_ARRAY_REQUIRE_KERNEL="1", **no_compiler)
    build_wheel(session, source, other, code=1, CIBUILDWHEEL="1", **no_compiler)
    output = build_wheel(session, source, other, **no_compiler)
    if "the C++ kernel was NOT built" not in output:
        session.error(f"A build without a compiler does not say that the kernel is missing:\n{output}")
    build_wheel(session, source, PURE, "-Cwheel.cmake=false", "-Cwheel.py-api=py3")
    (path,), (fallback,) = PURE.iterdir(), other.iterdir()
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(fallback) as two:
        if (path.name, one.namelist()) != (fallback.name, two.namelist()):
            session.error("A build without a compiler makes a wheel that differs from the published wheel.")
    install(session, dist=PURE)
    # The kernel serves eager NumPy and PyTorch; compiled functions and the backend array-api never call it.
    files = by_default("tests/test_wheel.py", *CONTRACT)
    selected = f"not compil and not array-api and {NOT_TWICE}"
    pytest(session, ["numpy", "torch"], f"--wheel={path}", *files, "-k", selected, *cover_by_default())
    # Other sessions test JAX without the kernel: on several devices, and by the backend array-api.
    if os.environ.get(NIGHTLY):
        pytest(session, ["jax"], "tests/test_jax.py", "-k", "not eight and not processes", part="jax")


@nox.session(requires=["build", "shared"], venv_backend="none")
def sanitize(session: nox.Session) -> None:
    """Test the kernel with GCC's address and undefined-behaviour sanitizers in it.

    Run if its files have changed, and in `nightly`.
    """
    files = content_of("sanitize")
    if reason := passed_before(session, "sanitize", files):
        session.skip(reason)
    if sys.platform != "linux" or not (shutil.which("gcc") and shutil.which("g++")):
        session.skip("GCC's sanitizers are preloaded into Python, which works on Linux alone: run it there")
    args = ("-Ccmake.define.ROPE_ARRAY_SANITIZE=address,undefined", "-Cinstall.strip=false")
    env = {"CC": "gcc", "CXX": "g++", "ROPE_ARRAY_REQUIRE_KERNEL": "1"}
    build_wheel(session, unpack(session), SANITIZED, *args, **env)
    install(session, dist=SANITIZED)
    found = (f"-print-file-name={name}.so" for name in ("libasan", "libstdc++"))
    pytest(
        *(session, ["numpy", "torch"], *map(str, sorted(ROOT.glob("tests/test_native*.py")))),
        # The kernel serves neither compiled functions nor the backend array-api.
        *("tests/test_conformance.py", "-k", f"not compile and not array-api and {NOT_TWICE}"),
        *cover_by_default(),
        LD_PRELOAD=" ".join(session.run("gcc", arg, external=True, silent=True).strip() for arg in found),
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",  # Python and its libraries leak at exit
        UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
    )
    record_pass(session, "sanitize", files)


@nox.session(name="tests-min", requires=["build"])
def tests_min(session: nox.Session) -> None:
    """Test with the oldest supported versions; without torch, whose old wheels are CUDA builds."""
    if sys.version_info >= (3, 13):
        session.skip("NumPy 2.0 has wheels up to Python 3.12 only: run this with Python 3.11 or 3.12")
    libraries = ENVIRONMENTS["oldest"]["oldest"]
    bounds = [*REQUIRED, *(spec for name in libraries for spec in needs(name))]
    install(session, *GROUPS["test"], *oldest(bounds))
    # tests(jax) tests 64 bits and compiled functions, with the newest version.
    selected = ("-k", f"not x64 and not jax:jit and {NOT_TWICE}", *cover_by_default())
    pytest(session, libraries, *by_default(*CONTRACT), *selected)


def versions_of(session: nox.Session, name: str) -> None:
    """Run an environment of tests/long/versions.toml, with other versions; writes its record."""
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
            dist = OTHER_PYTHON
            session.install(*BUILDING)
            build_wheel(session, unpack(session), dist, ROPE_ARRAY_REQUIRE_KERNEL="1")
            session.log(f"built {next(dist.glob('*.whl')).name}")
        install(session, *GROUPS["test"], *alone, *newest, *pins, *environment.get("install", ()), dist=dist)
        session.run("python", "tests/long/versions.py", name, *session.posargs)
    finally:  # some take gigabytes
        shutil.rmtree(session.virtualenv.location)


for _name, _environment in ENVIRONMENTS.items():
    nox.session(
        update_wrapper(partial(versions_of, name=_name), versions_of),
        name=f"versions({_name})",
        python=_environment.get("python"),
        requires=["build"],
        default=False,
    )


@nox.session(requires=["build"], venv_backend="none", default=False)
def versions(session: nox.Session) -> None:
    """Run all environments of tests/long/versions.toml: hours, each night and before a release."""
    for name in ENVIRONMENTS:
        session.notify(f"versions({name})")


@nox.session(requires=["build"], default=False)
def processors(session: nox.Session) -> None:
    """Compile the kernel for other processors and by other compilers, and compare its bits; writes records.

    For changes of backends/_native, and in `nightly`. Tools that are missing are named; with
    ROPE_ARRAY_REQUIRE_PROCESSORS their absence is an error.
    """
    install(session, *GROUPS["processors"])
    session.run("python", "tests/long/processors.py", *session.posargs)


@nox.session(requires=["build", "shared"], venv_backend="none")
def models(session: nox.Session) -> None:
    """Compare every rotary class of transformers, and whole models, with the library's reading of configs."""
    install(session)
    names = ("", "_modules", "_mrope", "_patch", "_families", "_docs", "_roformer")
    files = (f"tests/test_hf{name}.py" for name in names)
    pytest(session, ["numpy", "torch"], "--models", *files)


@nox.session(requires=["build"], default=False)
def edge(session: nox.Session) -> None:
    """Test against other people's tools: exporters and their runtimes, FSDP over models, foreign configs."""
    session.install(TORCH)  # first and alone, as another package would bring another build
    install(session, *GROUPS["test"], *GROUPS["models"], *GROUPS["edge"])
    session.install("--no-deps", *GROUPS["edge-alone"])  # it needs packages that no test uses
    pytest(session, ["numpy", "torch"], "--edge", "tests/edge")


@nox.session(requires=["build"], default=False)
def serving(session: nox.Session) -> None:
    """Test inside vLLM on the CPU: layers of every class, and whole engines with tiny models."""
    session.install(TORCH)  # first and alone, as another package would bring another build
    session.install("--no-deps", *GROUPS["serving-alone"], "packaging")
    requirements = session.run("python", "tests/serving/requirements.py", silent=True)
    install(session, TORCH, *GROUPS["test"], *requirements.split())
    # Warnings of vLLM's import are not ours.
    pytest(session, ["numpy", "torch"], "--serving", "-W", "default", "tests/serving", "tests/test_vllm.py")


@nox.session(requires=["build"])
def proof(session: nox.Session) -> None:
    """Prove the bounds of the contract with Sollya and Gappa, and print both in a table.

    Run if its files have changed, and in `nightly`. Without these programs the session is skipped, or fails
    if ROPE_ARRAY_REQUIRE_PROOF is set.
    """
    files = content_of("proof")
    if reason := passed_before(session, "proof", files):
        session.skip(reason)
    if missing := [tool for tool in ("sollya", "gappa") if not shutil.which(tool)]:
        reason = f"not installed: {', '.join(missing)} (Debian, Ubuntu: apt install sollya gappa)"
        (session.error if os.environ.get("ROPE_ARRAY_REQUIRE_PROOF") else session.skip)(reason)
    install(session, *GROUPS["test"])
    # One process: the proofs start a Gappa on each core.
    pytest(session, ["numpy"], "--proof", "-n", "0", "tests/test_proof.py")
    record_pass(session, "proof", files)


@nox.session(requires=["build", "shared"], venv_backend="none")
def triton(session: nox.Session) -> None:
    """Test PyTorch's kernel for GPUs by Triton's interpreter."""
    install(session)
    pip = ("-m", "pip")
    python(session, *pip, "install", "-q", *GROUPS["triton"], silent=True)
    # Triton interprets all kernels of a process, or none.
    files = ("tests/test_triton.py", "tests/test_conformance.py")
    try:
        pytest(session, ["torch"], "--gpu-code", *files, "-k", "triton")
    finally:  # the other sessions of the shared environment test PyTorch without Triton
        python(session, *pip, "uninstall", "-qy", "triton", silent=True)


@nox.session(name="gpu-code", requires=["build"])
def gpu_code(session: nox.Session) -> None:
    """Check the code for GPUs and TPUs without one, by their compilers.

    Run if its files have changed, and in `nightly`.
    """
    files = content_of("gpu-code")
    if reason := passed_before(session, "gpu-code", files):
        session.skip(reason)
    session.install(TORCH)  # first and alone, as another package would bring another build
    install(session, *GROUPS["test"], *GROUPS["triton"], *GROUPS["gpu-code"])
    # Each worker compiles for itself, so a file is for one worker; the longest are first.
    names = ("cuda_compile", "cuda_source", "jax_offline", "triton_compile", "inductor_offline")
    compiled = ("--gpu-code", "--dist=loadfile", *(f"tests/test_{name}.py" for name in names))
    pytest(session, ["numpy", "torch", "jax"], *compiled)
    record_pass(session, "gpu-code", files)


@nox.session(requires=["build", "shared"], venv_backend="none")
def study(session: nox.Session) -> None:
    """Test the study of the RoFormer paper in bench/roformer, and run all of it at its smallest size.

    Run if its files have changed, and in `nightly`.
    """
    files = content_of("study")
    if reason := passed_before(session, "study", files):
        session.skip(reason)
    if sys.platform == "win32":
        session.skip("The study starts its jobs from a fork server, which Windows lacks")
    install(session)
    paths = sorted(ROOT.glob("tests/test_roformer_*.py"), key=lambda path: path.stem != "test_roformer_study")
    pytest(session, ["numpy", "torch"], "--study", *map(str, paths))  # the longest is first
    record_pass(session, "study", files)


@nox.session(requires=["build"], default=False)
def roformer(session: nox.Session) -> None:
    """Run the study of the RoFormer paper: under an hour on two cores; writes docs/roformer.md."""
    session.install(TORCH)  # first and alone, as another package would bring another build
    install(session, *GROUPS["roformer"])
    with session.chdir("bench"):
        session.run("python", "-m", "roformer", *(session.posargs or ["all"]))


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
    install_alone(session, *GROUPS["scoreboard-alone"])
    session.run("python", "bench/scoreboard.py", *session.posargs)


@nox.session(requires=["build"], default=False)
def bench(session: nox.Session) -> None:
    """Measure speed against copies and other implementations; writes docs/speed.md and README.md's table."""
    session.install(TORCH)  # first and alone, as a peer would bring another build
    install(session, TORCH, *GROUPS["peers"], *GROUPS["bench"])
    session.install("--no-deps", *GROUPS["bench-alone"])  # it asks for another build of PyTorch
    session.run("python", "bench/speed.py", *session.posargs)


@nox.session(requires=["build"], default=False)
def gpu(session: nox.Session) -> None:
    """Run the conformance suite and bench/speed.py on an NVIDIA GPU; writes docs/speed/gpu.md."""
    if not shutil.which("nvidia-smi") or not session.run(
        "nvidia-smi", "-L", external=True, silent=True, success_codes=range(256)
    ).startswith("GPU "):
        session.error("This session needs an NVIDIA GPU and its driver: nvidia-smi finds none")
    session.install(TORCH)  # first and alone, as a peer would bring another build
    install(session, TORCH, *GROUPS["peers"], *GROUPS["gpu"])
    install_alone(session, *GROUPS["gpu-alone"])
    RESULTS.mkdir(parents=True, exist_ok=True)
    for target in ("torch:cuda", "jax:gpu", "cupy"):
        report = RESULTS / f"gpu-{target.replace(':', '-')}.xml"
        session.run("python", "-P", "-m", "rope_array", "check", target, f"--junit={report}")
    session.run("python", "bench/speed.py", "--gpu", *session.posargs)


@nox.session(requires=["build"], default=False)
@nox.parametrize("library", LIBRARIES, ids=LIBRARIES)
def long(session: nox.Session, library: str) -> None:
    """Try many more random examples, and every float32 remainder."""
    install(session, *GROUPS["test"], *needs(library))
    times = "10" if library == "jax" else "100"  # JAX compiles every shape
    pytest(session, [library], "tests/test_invariants.py", "tests/test_phase.py", ROPE_ARRAY_EXAMPLES=times)
    name = "array_api_strict" if library == "strict" else library
    session.run("python", "tests/long/exhaustive.py", "--libraries", name)


@nox.session(requires=["build"], default=False)
def matrix(session: nox.Session) -> None:
    """Run every check of the suite on every mutant: which checks kill which mutants."""
    session.install(TORCH)  # first and alone, as another package would bring another build
    install(session, *GROUPS["test"], *needs("jax"))
    session.run("python", "tests/long/kill_matrix.py", *session.posargs)


@nox.session(requires=["build"])
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors, and run its examples."""
    install(session, *GROUPS["docs"])
    out = ROOT / "docs" / "_build"
    for builder in ("html", "doctest"):
        # Both builders read the pages; the second gets them from the first.
        args = ("-b", builder, "-d", str(out / "doctrees"), "docs", str(out / builder))
        session.run("sphinx-build", "-qW", *args, silent=builder == "doctest")


@nox.session(requires=["build"], default=False)
def pictures(session: nox.Session) -> None:
    """Draw the pictures of the documentation anew, from the examples of docs/plots.md."""
    install(session, *GROUPS["numpy"])
    session.run("python", "docs/_pictures.py", env={"PYTHONSAFEPATH": "1"})


@nox.session(requires=["build", "shared"], venv_backend="none", default=False)
def nightly(session: nox.Session) -> None:
    """Run the test sessions with all cases, the mark `nightly` included, whatever has changed."""
    os.environ[NIGHTLY] = "1"
    libraries = (f"tests({library})" for library in [*LIBRARIES, "more", "all"])
    others = ("models", "edge", "serving", "matrix", "processors", "pure", "release", "tests-min", "triton")
    for name in (*libraries, *others, *READ_BY):
        session.notify(name)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Check what a release publishes, after `build`: before a release, and in `nightly`.

    release/check.py has the checks, and writes bench/results/release.json. Arguments after `--` run one of
    them: `-- published dist v0.1.0`.
    """
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    (cibuildwheel,) = re.findall(r"pypa/cibuildwheel@\w+ # v([\d.]+)", workflow)
    session.install(*REQUIRED, *BUILDING, *GROUPS["release"], f"cibuildwheel=={cibuildwheel}")
    session.run("python", "release/check.py", *(session.posargs or ["all"]))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting, and the workflows of .github: their form, their scripts, their security."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("jactionlint", "--strict-exit")
    session.run("zizmor", "--offline", "--no-progress", "--quiet", "--pedantic", ".github")


@nox.session(requires=["build"])
def types(session: nox.Session) -> None:
    """Check types, strictly, on the installed wheel: the checkout has `backends` in another place."""
    install(session, *GROUPS["types"])
    with session.chdir(session.create_tmp()):
        for checked in (("-p", "rope_array"), (str(ROOT / "tests" / "typing_cases.py"),)):
            session.run("mypy", f"--config-file={ROOT / 'pyproject.toml'}", *checked, *session.posargs)
