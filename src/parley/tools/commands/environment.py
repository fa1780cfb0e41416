"""Determines which of the server's environment variables a command inherits (see docs/config.md). The decision
depends on the name of the variable. In addition, a proxy variable whose value contains a password is excluded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, assert_never

from parley.common.variable_names import SECRETS, matches
from parley.config.types import ShellEnvironment

__all__ = ["CORE", "NEVER", "SAFE", "command_environment", "with_restricted_git"]

CORE: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "USER", "USERNAME", "TMPDIR", "TEMP", "TMP")
"""The variables that commands inherit with the setting `inherit = "core"`, unless they are excluded."""

PROXIES: Final = ("ALL_PROXY", "FTP_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")

SAFE: Final[Mapping[str, tuple[str, ...]]] = {
    "core": CORE,
    "locale": (
        "LANG",
        "LANGUAGE",
        "LC_ADDRESS",
        "LC_ALL",
        "LC_COLLATE",
        "LC_CTYPE",
        "LC_IDENTIFICATION",
        "LC_MEASUREMENT",
        "LC_MESSAGES",
        "LC_MONETARY",
        "LC_NAME",
        "LC_NUMERIC",
        "LC_PAPER",
        "LC_TELEPHONE",
        "LC_TIME",
        "TZ",
    ),
    "terminal": (
        "CI",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "COLORTERM",
        "COLUMNS",
        "FORCE_COLOR",
        "LINES",
        "NO_COLOR",
        "TERM",
    ),
    "proxies": (*PROXIES, *(name.lower() for name in PROXIES)),
    "certificates": (
        "CURL_CA_BUNDLE",
        "NIX_SSL_CERT_FILE",
        "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
    ),
    "directories": (
        "XDG_CACHE_HOME",
        "XDG_CONFIG_DIRS",
        "XDG_CONFIG_HOME",
        "XDG_DATA_DIRS",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
    ),
    "compilers": (
        "AR",
        "CC",
        "CFLAGS",
        "CMAKE_PREFIX_PATH",
        "CPPFLAGS",
        "CUDA_HOME",
        "CUDA_PATH",
        "CXX",
        "CXXFLAGS",
        "LDFLAGS",
        "PKG_CONFIG_PATH",
    ),
    "toolchains": (
        "ANDROID_HOME",
        "ANDROID_NDK_HOME",
        "ANDROID_SDK_ROOT",
        "ANT_HOME",
        "ASDF_DATA_DIR",
        "ASDF_DIR",
        "BUNDLE_PATH",
        "BUN_INSTALL",
        "CARGO_HOME",
        "CARGO_TARGET_DIR",
        "COMPOSER_HOME",
        "CONDA_DEFAULT_ENV",
        "CONDA_PREFIX",
        "COREPACK_HOME",
        "DENO_DIR",
        "DOTNET_ROOT",
        "FLUTTER_ROOT",
        "FNM_DIR",
        "GEM_HOME",
        "GEM_PATH",
        "GOBIN",
        "GOCACHE",
        "GOMODCACHE",
        "GOPATH",
        "GOROOT",
        "GRADLE_HOME",
        "GRADLE_USER_HOME",
        "HOMEBREW_CELLAR",
        "HOMEBREW_PREFIX",
        "HOMEBREW_REPOSITORY",
        "JAVA_HOME",
        "JULIA_DEPOT_PATH",
        "M2_HOME",
        "MAVEN_HOME",
        "MISE_DATA_DIR",
        "NIX_PATH",
        "NIX_PROFILES",
        "NVM_BIN",
        "NVM_DIR",
        "OPAMROOT",
        "OPAM_SWITCH_PREFIX",
        "PIP_CACHE_DIR",
        "PIPX_HOME",
        "PNPM_HOME",
        "POETRY_HOME",
        "PYENV_ROOT",
        "RBENV_ROOT",
        "RUSTUP_HOME",
        "RUSTUP_TOOLCHAIN",
        "SDKMAN_DIR",
        "STACK_ROOT",
        "UV_CACHE_DIR",
        "VIRTUAL_ENV",
        "VOLTA_HOME",
    ),
}
"""The variables that commands inherit with the setting `inherit = "safe"`, unless they are excluded. The variables
are grouped by purpose.
"""

NEVER: Final = (
    # variables that name files or contain code that shells read when they start
    "BASHOPTS",
    "BASH_ENV",
    "BASH_FUNC_*",
    "ENV",
    "IFS",
    "PROMPT_COMMAND",
    "PS4",
    "SHELLOPTS",
    "ZDOTDIR",
    # variables that name libraries which the dynamic loader loads
    "DYLD_*",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "LD_*",
    # variables that contain modules and options of interpreters
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PERL5*",
    "PERLLIB",
    "PYTHON*",
    "RUBYLIB",
    "RUBYOPT",
    # variables that name programs which other programs run, or files with their settings
    "GIT_*",
    "LESSCLOSE",
    "LESSOPEN",
    "MANPAGER",
    "PAGER",
    "RIPGREP_CONFIG_PATH",
)
"""Name patterns of variables that make programs run or load other files. Commands never inherit these variables,
but the settings may define them (`set`).
"""


_RESTRICTED_GIT_SETTINGS: Final[Mapping[str, str]] = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "gpg.openpgp.program": "/bin/false",
    "gpg.program": "/bin/false",
    "gpg.ssh.program": "/bin/false",
    "gpg.x509.program": "/bin/false",
    "log.showSignature": "false",
    "safe.bareRepository": "explicit",
}
"""Values for the Git settings that can name programs for Git to run. These values override the settings of a
repository.
"""

_RESTRICTED_GIT: Final[Mapping[str, str]] = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PAGER": "cat",
    "GIT_CONFIG_COUNT": str(len(_RESTRICTED_GIT_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{place}": key for place, key in enumerate(_RESTRICTED_GIT_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{place}": value for place, value in enumerate(_RESTRICTED_GIT_SETTINGS.values())},
}
"""Variables that keep Git from fetching, taking optional locks, prompting, and running a pager, hook, monitor or
signature checker.

The variables cannot disable the filters and diff drivers that a repository configures, but the sandbox confines
those programs.
"""


def command_environment(
    environ: Mapping[str, str], policy: ShellEnvironment, *, network: bool, keys: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment of a command: the allowed variables of `environ`, and the variables that the settings
    define. `policy` contains these settings. `network` is True if the command has network access. `keys` are the
    names of variables that contain secrets of the server; a command never inherits these variables.
    """
    environ = {name: value for name, value in environ.items() if name not in keys}
    hidden = (*NEVER, *policy.exclude)
    if not policy.ignore_default_excludes:
        hidden = (*hidden, *SECRETS)
        environ = {name: value for name, value in environ.items() if not _is_proxy_with_password(name, value)}
    start = _start(environ, policy)
    env = {name: value for name, value in start.items() if not matches(name, hidden)} | policy.set
    if policy.include_only:
        env = {name: value for name, value in env.items() if matches(name, policy.include_only)}
    if not network:
        env["CODEX_SANDBOX_NETWORK_DISABLED"] = "1"
    return env


def with_restricted_git(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with additional variables, for a command that runs without approval.

    The added variables keep Git from running hooks, pagers, monitors and signature checkers. The sandbox confines
    filters and diff drivers.
    """
    return {**env, **_RESTRICTED_GIT}


def _start(environ: Mapping[str, str], policy: ShellEnvironment) -> Mapping[str, str]:
    match policy.inherit:
        case "safe":
            return _only(environ, (name for group in SAFE.values() for name in group))
        case "all":
            return environ
        case "core":
            return _only(environ, CORE)
        case "none":
            return {}
        case unknown:
            assert_never(unknown)


def _only(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}


def _is_proxy_with_password(name: str, value: str) -> bool:
    return name.upper() in PROXIES and "@" in value
