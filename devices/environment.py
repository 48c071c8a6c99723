"""Environment variables: which ones children get, and which ones move the user's folders."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import platformdirs

# Variables that programs need for their paths, language and tools. Secrets can have any name (DATABASE_URL,
# GITHUB_PAT, MYSQL_PWD): only an allowlist keeps them out.
_SYSTEM: Final = """
PATH HOME USER LOGNAME SHELL TERM COLORTERM NO_COLOR FORCE_COLOR CLICOLOR COLUMNS LINES PWD TMPDIR TMP TEMP TZ CI
LANG LANGUAGE LC_ALL LC_ADDRESS LC_COLLATE LC_CTYPE LC_IDENTIFICATION LC_MEASUREMENT LC_MESSAGES LC_MONETARY
LC_NAME LC_NUMERIC LC_PAPER LC_TELEPHONE LC_TIME XDG_DATA_HOME XDG_CONFIG_HOME XDG_CACHE_HOME XDG_STATE_HOME
XDG_RUNTIME_DIR XDG_DATA_DIRS XDG_CONFIG_DIRS DISPLAY WAYLAND_DISPLAY XAUTHORITY XDG_SESSION_TYPE
XDG_CURRENT_DESKTOP HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE
CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS SOURCE_DATE_EPOCH SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT USERPROFILE
USERNAME USERDOMAIN HOMEDRIVE HOMEPATH APPDATA LOCALAPPDATA PROGRAMDATA PROGRAMFILES PROGRAMFILES(X86)
PROGRAMW6432 COMMONPROGRAMFILES COMMONPROGRAMFILES(X86) COMMONPROGRAMW6432 ALLUSERSPROFILE PUBLIC COMPUTERNAME OS
NUMBER_OF_PROCESSORS PROCESSOR_ARCHITECTURE PROCESSOR_IDENTIFIER PROCESSOR_LEVEL PROCESSOR_REVISION DRIVERDATA
PSMODULEPATH
"""
_TOOLS: Final = """
LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH CC CXX CPP AR AS
LD NM RANLIB STRIP CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS CMAKE_PREFIX_PATH CMAKE_GENERATOR INCLUDE LIB
LIBPATH VSINSTALLDIR VCINSTALLDIR VCTOOLSINSTALLDIR WINDOWSSDKDIR WINDOWSSDKVERSION DEVELOPER_DIR SDKROOT
VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE MAMBA_ROOT_PREFIX PYENV_ROOT PYENV_VERSION UV_CACHE_DIR
PIP_CACHE_DIR PIPX_HOME PYTHONPATH PYTHONHOME PYTHONUTF8 PYTHONIOENCODING PYTHONUNBUFFERED PYTHONHASHSEED
PYTHONDONTWRITEBYTECODE PYTHONNOUSERSITE PYTHONPYCACHEPREFIX PYTHONWARNINGS NVM_DIR NVM_BIN NODE_PATH NODE_ENV
NODE_OPTIONS PNPM_HOME VOLTA_HOME FNM_DIR BUN_INSTALL DENO_DIR RUSTUP_HOME RUSTUP_TOOLCHAIN CARGO_HOME
CARGO_TARGET_DIR RUSTFLAGS RUST_BACKTRACE GOPATH GOROOT GOBIN GOCACHE GOMODCACHE GOFLAGS GOOS GOARCH CGO_ENABLED
JAVA_HOME JDK_HOME M2_HOME MAVEN_HOME GRADLE_HOME GRADLE_USER_HOME KOTLIN_HOME SDKMAN_DIR ANDROID_HOME
ANDROID_SDK_ROOT ANDROID_NDK_HOME GEM_HOME GEM_PATH RBENV_ROOT BUNDLE_PATH DOTNET_ROOT DOTNET_CLI_TELEMETRY_OPTOUT
NUGET_PACKAGES GHCUP_INSTALL_BASE_PREFIX OPAMROOT PERL5LIB R_HOME R_LIBS_USER JULIA_DEPOT_PATH ASDF_DIR
ASDF_DATA_DIR MISE_DATA_DIR NIX_PATH NIX_PROFILES CUDA_HOME CUDA_PATH CUDA_VISIBLE_DEVICES ROCM_PATH
HIP_VISIBLE_DEVICES OMP_NUM_THREADS
"""
# Counts by its presence, whatever its value, and crashes or garbles ROCm. Source: unslothai/unsloth, pull 10351.
UNIFIED_MEMORY: Final = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"
AMD_COMPUTE: Final = Path("/dev/kfd")
_PASSED: Final = frozenset(f"{_SYSTEM} {_TOOLS}".split())
# Tessera's own children also get the settings of its engines, and of the drivers and libraries below them.
_OWN_PREFIXES: Final = """
TESSERA_ GGML_ LLAMA_ HF_ TRANSFORMERS_ VLLM_ RAY_ TORCH TRITON_ PYTORCH_ ONNX ORT_ FLM_ PYTHON GLIBC_ MALLOC_
CUDA_ CUDNN_ CUBLAS_ NVIDIA_ NCCL_ HIP_ HIPBLASLT_ HSA_ ROCR_ ROCM_ ROCBLAS_ RCCL_ MIOPEN_ AMD_ GPU_ GFX_ XRT_
XILINX_ XLNX_ RYZEN VITIS_ ONEAPI_ ZE_ ZES_ SYCL_ UR_ IGC_ NEO_ INTEL_ OV_ OPENVINO QNN_ ASCEND_ MUSA_ OCL_
OPENCL_ CL_ POCL_ VK_ MESA_ RADV_ ANV_ DRI_ GALLIUM_ LIBGL_ LIBVA_ MTL_ METAL_ OMP_ KMP_ GOMP_ MKL_ OPENBLAS_
BLIS_ VECLIB_ NUMEXPR_ DBUS_ XDG_ LC_ COVERAGE_ LD_ DYLD_ WSL FLASHINFER_ HIPBLAS_ TENSILE_ IPEX_ XLA_
SAFETENSORS_ ACL_ MLX_ ADSP_ PULSE_ PIPEWIRE_ ALSA_ JACK_ SPEECHD_ ESPEAK_
"""
_OWN: Final = tuple(_OWN_PREFIXES.split())
# Allowed names may still hold secrets: HF_TOKEN, or a proxy's address with its password.
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASS|PWD.|_PWD|KEY|CRED|AUTH(?!ORITY)|COOKIE|JWT|DSN")
_WITH_PASSWORD: Final = re.compile(r"://[^/\s@]*@")


# Variables that name a folder. Children and services may have another current folder than the shell.
FOLDERS: Final = frozenset(
    {"TESSERA_HOME", "TESSERA_INSTALLED_MODELS", "TESSERA_SPEECH", "TESSERA_KERNELS", "TESSERA_ENGINES"}
    | {"TESSERA_FAULT_RULES", "HF_HOME", "HF_HUB_CACHE"}
)


def absolute_folders(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of `variables` that name folders, as absolute paths; relative ones start at the current folder."""
    folders = {name: value for name, value in variables.items() if name in FOLDERS and value}
    return {name: str(Path(value).expanduser().absolute()) for name, value in folders.items()}


def user_folder(name: str, override: str) -> Path:
    """`name` below TESSERA_HOME, or in the user's data folder; the variable `override` takes precedence."""
    if folder := os.environ.get(override):
        return Path(folder)
    if home := os.environ.get("TESSERA_HOME"):
        return Path(home).expanduser().absolute() / name
    return Path(platformdirs.PlatformDirs("tessera", appauthor=False).user_data_dir) / name


def program_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for other programs, such as an agent's commands and tool servers, plus `extra`."""
    return {k: v for k, v in os.environ.items() if _passes(k, v)} | dict(extra or {})


def without_secrets(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for Tessera's own children, which read untrusted files or use devices, plus `extra`."""
    left_out = {UNIFIED_MEMORY} if AMD_COMPUTE.exists() else set()
    variables = {k: v for k, v in os.environ.items() if _passes(k, v, _OWN) and k not in left_out}
    return variables | dict(extra or {})


def sounds_secret(name: str) -> bool:
    """Whether a variable of that name may hold a secret; HF_HUB_DISABLE_IMPLICIT_TOKEN is a switch."""
    upper = name.upper()
    return "DISABLE" not in upper and _SECRET.search(upper) is not None


def _passes(name: str, value: str, prefixes: tuple[str, ...] = ()) -> bool:
    upper = name.upper()
    on_list = upper in _PASSED or upper.startswith(prefixes)
    return on_list and not sounds_secret(upper) and not _WITH_PASSWORD.search(value)
