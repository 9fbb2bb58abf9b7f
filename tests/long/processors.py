"""Compile the C++ kernel for other processors and by other compilers, run it, and compare its bits.

    python tests/long/processors.py [--only PATTERN] [--module NAME COMMAND]

The calls of processor_calls.py have a hash for each layout and dtype. The installed kernel has to give the
hashes of the backend array-api, and so has each build: replay.cpp with the kernel, without Python.
Programs for another processor run by QEMU, those for Windows by Wine. Tools that are missing are named; with
ROPE_ARRAY_REQUIRE_PROCESSORS it is an error if a tool of NEEDED is missing.

`--module` runs the calls and the suite by another Python that has the whole package, such as one by QEMU.
Each environment leaves a record in results/versions.json, in the form of versions.py.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from processor_calls import replayed
from versions import ROOT, about, add_record, failures

RECORDER, REPLAY = (Path(__file__).with_name(name) for name in ("processor_calls.py", "replay.cpp"))
CALLS = "calls.bin"
REQUIRE = "ROPE_ARRAY_REQUIRE_PROCESSORS"
NEEDED = ("g++", "clang++", "aarch64-linux-gnu-g++", "qemu-aarch64")
DEBIAN = "Debian: apt install g++ clang g++-aarch64-linux-gnu qemu-user-static"
HERE = platform.machine().lower().replace("amd64", "x86-64").replace("x86_64", "x86-64")
OPTIMISATIONS = ("", "-O0", "-O1", "-O3", "-O3 -march=native")
CROSS = {  # Debian's compilers, by the name of the processor in CMake and in QEMU
    "aarch64": "aarch64-linux-gnu",
    "riscv64": "riscv64-linux-gnu",
    "ppc64le": "powerpc64le-linux-gnu",
    "arm": "arm-linux-gnueabihf",
}
ZIG = {  # of the package ziglang: target, and system and processor in CMake
    "x86-64 musl": ("x86_64-linux-musl", "Linux", "x86_64"),
    "aarch64 musl": ("aarch64-linux-musl", "Linux", "aarch64"),
    "x86-64 Windows": ("x86_64-windows-gnu", "Windows", "AMD64"),
    "aarch64 macOS": ("aarch64-macos", "Darwin", "arm64"),
    "x86-64 macOS": ("x86_64-macos", "Darwin", "x86_64"),
}


class Build(NamedTuple):
    name: str
    compiler: str
    emulator: list[str] | None  # empty: it runs here; None: it is only compiled
    options: list[str]  # of CMake


def tool(*names):
    """Return the path of the first program of these names, or None."""
    return next(filter(None, map(shutil.which, names)), None)


def emulator_of(processor):
    """Return the command that runs a program for a processor, or None if there is none."""
    if processor == HERE:
        return []
    path = tool(f"qemu-{processor}-static", f"qemu-{processor}")
    return path and [path]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run(*command, **options):
    """Run a command and return its output; stop if it fails."""
    env = os.environ | {"PYTHONSAFEPATH": "1", "WINEDEBUG": "-all"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def title(compiler):
    """Return the family of a compiler and its major version."""
    first, version = (output(compiler, option).split("\n")[0] for option in ("--version", "-dumpversion"))
    return f"{'clang' if 'clang' in first else 'GCC'} {version.partition('.')[0]}"


def named(name, compiler, emulator, options):
    """Return a build whose name says how it runs."""
    by = Path(emulator[0]).name.partition("-")[0] if emulator else "compiled only"
    return Build(name if emulator == [] else f"{name} ({by})", compiler, emulator, options)


def builds(folder):
    """Yield the builds whose compilers are installed."""
    yield from builds_of_this_processor()
    for processor, triple in CROSS.items():
        compiler = f"{triple}-g++"
        if shutil.which(compiler) and processor != HERE:
            options = ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={processor}"]
            options += ["-DCMAKE_EXE_LINKER_FLAGS=-static"]
            yield named(f"{processor}, {title(compiler)}", compiler, emulator_of(processor), options)
    yield from builds_of_zig(folder)


def builds_of_this_processor():
    for compiler in filter(shutil.which, ("g++", "clang++", *(f"clang++-{n}" for n in range(15, 30)))):
        for flags in OPTIMISATIONS if compiler == "g++" else ("",):
            level, _, more = flags.partition(" ")
            options = [f"-DCMAKE_CXX_FLAGS={more}"]
            if level:
                options += [
                    f"-D{name}={level}"
                    for name in ("ROPE_ARRAY_LOOP_OPTIMISATION", "CMAKE_CXX_FLAGS_RELEASE")
                ]
            yield Build(f"{HERE}, {title(compiler)} {flags}".strip(), compiler, [], options)
    if HERE == "x86-64":
        yield Build(f"{HERE}, {title('g++')}, one level", "g++", [], ["-DROPE_ARRAY_HAS_X86_LEVELS=OFF"])


def builds_of_zig(folder):
    """Yield the builds of the package ziglang, if it is installed: of its clang."""
    zig = (sys.executable, "-m", "ziglang")
    if subprocess.run((*zig, "version"), capture_output=True, check=False).returncode:
        return
    compiler = folder / "zig-c++"
    compiler.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang c++ "$@"\n', "utf-8")
    compiler.chmod(0o755)
    version, wine = output(*zig, "version").strip(), tool("wine")
    for name, (target, system, processor) in ZIG.items():
        options = [f"-DCMAKE_SYSTEM_NAME={system}", f"-DCMAKE_SYSTEM_PROCESSOR={processor}"]
        options += [f"-DCMAKE_CXX_FLAGS=-target {target}"]
        emulators = {"Linux": emulator_of(name.split()[0]), "Windows": wine and [wine]}
        yield named(f"{name}, zig {version}", str(compiler), emulators.get(system), options)


def compile_program(build, folder):
    """Return the program of a build, compiled with the options of CMakeLists.txt."""
    replay = f"-DROPE_ARRAY_PROGRAM={REPLAY}"
    compiler = f"-DCMAKE_CXX_COMPILER={build.compiler}"
    options = ("-GNinja", "-DCMAKE_BUILD_TYPE=Release", replay, compiler, *build.options)
    run("cmake", "-S", ROOT, "-B", folder, *options)
    run("cmake", "--build", folder)
    return next(path for path in folder.glob("_kernel*") if path.suffix in ("", ".exe"))


def versions_here():
    """Return the date, the commit, the system, and the versions that the calls depend on."""
    record = about()
    return record | {"versions": {name: record["versions"][name] for name in ("python", "numpy")}}


def counts(runs, expected):
    """Return how many hashes of each run are the expected ones, as records count tests."""
    tests = {}
    for name, hashes in runs.items():
        different = [
            group for group, digest in expected["runs"]["array-api"].items() if hashes[group] != digest
        ]
        equal = len(hashes) - len(different)
        print(f"  {name}: {equal} equal, {len(different)} different", *different[:5], flush=True)
        tests[f"calls, {name}"] = {"passed": equal, "failed": len(different), "skipped": 0}
    return tests


def run_build(build, folder, expected):
    """Compile a build, and run it if it can be; return its record."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        program, results = compile_program(build, Path(name)), Path(name) / "results"
        record = versions_here() | {"compiler": output(build.compiler, "--version").split("\n")[0]}
        if build.emulator is None:
            print("  compiled; nothing runs it here")
            return record | {"run": False}
        if build.emulator:
            record["emulator"] = output(build.emulator[0], "--version").split("\n")[0]
        names = run(*build.emulator, program, folder / CALLS, results, cwd=folder).splitlines()
        return record | {"tests": counts(dict(replayed(results, names, expected["sizes"])), expected)}


def run_module(command, folder, expected):
    """Run the calls and the suite by a Python that has the whole package; return the record."""
    hashes = folder / "hashes.json"
    run(*command, RECORDER, hashes)
    report = json.loads(run(*command, "-m", "rope_array", "check", "numpy", "--json"))
    system = report["machine"]
    return versions_here() | {
        "system": system.pop("machine"),
        "versions": system,
        "checks": {"numpy": {outcome: report["counts"][outcome] for outcome in ("passed", "failed")}},
        "tests": counts(json.loads(hashes.read_text("utf-8"))["runs"], expected),
    }


def environments(folder, expected, module):
    """Yield the name of each environment, and a function that returns its record."""
    if module:
        yield module[0], partial(run_module, module[1].split(), folder, expected)
        return
    yield (
        f"{HERE}, this wheel",
        lambda: versions_here() | {"compiler": "of the wheel", "tests": counts(expected["runs"], expected)},
    )
    for build in builds(folder):
        yield build.name, partial(run_build, build, folder, expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression for names")
    parser.add_argument("--module", nargs=2, metavar=("NAME", "COMMAND"), help="a Python with the package")
    arguments = parser.parse_args()
    if absent := [name for name in NEEDED if not tool(name, f"{name}-static")]:
        message = f"not installed: {', '.join(absent)} ({DEBIAN})"
        sys.exit(message) if os.environ.get(REQUIRE) else print(message)
    failed = []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        run(sys.executable, RECORDER, folder / "expected.json", folder / CALLS)
        expected = json.loads((folder / "expected.json").read_text("utf-8"))
        for name, run_environment in environments(folder, expected, arguments.module):
            if re.search(arguments.only, name):
                print(name, flush=True)
                add_record(name, record := run_environment())
                failed += [name] * bool(failures(record))
    if failed:
        sys.exit(f"other bits: {', '.join(failed)}")


if __name__ == "__main__":
    main()
