"""Which Chromium to run and how to start it: finding the executable, its command line, whom it trusts.

The command line leaves the browser no way around the proxy (measured with Chromium 156, each by watching listeners):

    launch-level proxy, bypass "<-loopback>"            loopback is proxied too, and outside of a context all is refused
    --webrtc-ip-handling-policy=disable_non_proxied_udp no STUN or media over UDP
    --disable-quic                                      no HTTP/3 over UDP
    --host-resolver-rules                               Chromium itself resolves no name

and, so that frames from hundreds of sites do not start hundreds of processes (225 measured; with it 8 in all):

    --disable-site-isolation-trials                     the frames of one page share its process

Pages do not: each has a context of its own. Within one page there is nothing to keep apart but what it loads in one
anonymous visit, without cookies or logins; the same-origin policy still holds there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import shutil
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import platformdirs

from trawl.errors import BrowserError
from trawl.settings import Settings

__all__ = ["find_browser", "launch_options", "limit_memory", "no_browser", "platform_of", "spki_hashes"]

MAX_PROCESS_BYTES: Final = 2 * 2**30
"""Private memory of one process of the browser; large web applications take some hundred megabytes."""
NAMES_ON_PATH: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Below Playwright's folder of downloads: the full browser first, the headless shell is told apart more easily by sites.
PLAYWRIGHT_LAYOUTS: Final = (
    "chromium-*/chrome-linux*/chrome",
    "chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
    "chromium-*/chrome-win*/chrome.exe",
    "chromium_headless_shell-*/chrome-*/*headless*shell",
    "chromium_headless_shell-*/chrome-*/*headless*shell.exe",
)

# What Chromium needs of the environment. Everything else stays here: a page that breaks out of its renderer must not
# find our keys, launchers of distributions take switches from it (CHROMIUM_FLAGS), and Chromium itself a file to write
# TLS keys to (SSLKEYLOGFILE) and a sandbox to trust (CHROME_DEVEL_SANDBOX).
_ENVIRONMENT: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "LD_LIBRARY_PATH"}
    | {"FONTCONFIG_FILE", "FONTCONFIG_PATH", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_DIRS"}
    | {"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "USERPROFILE", "LOCALAPPDATA", "APPDATA", "PROGRAMFILES"}
)
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def find_browser(settings: Settings) -> Path | None:
    """The executable to run: the one in `settings.browser` and no other, or else Playwright's own download, or else the
    first of `NAMES_ON_PATH`. None when there is none."""
    if settings.browser is not None:
        return settings.browser if _is_executable(settings.browser) else None
    for path in _downloaded_by_playwright():
        if _is_executable(path):
            return path
    for name in NAMES_ON_PATH:
        if found := shutil.which(name):
            return Path(found)
    return None


def no_browser(settings: Settings) -> BrowserError:
    """The error for a `find_browser` that found nothing."""
    if settings.browser is not None:
        return BrowserError(
            f"the browser named in the settings is not an executable file: {settings.browser}",
            hint='Correct TRAWL_BROWSER or remove it, or use render="never".',
        )
    return BrowserError(
        "no Chromium is installed, and this page needs one",
        hint="Run `playwright install --with-deps chromium`, or `apt-get install chromium` on Debian, "
        'or use render="never".',
    )


def launch_options(executable: Path, deny_server: str, *, test_ca: Path | None = None) -> dict[str, Any]:
    """Keyword arguments of Playwright's `chromium.launch`.

    Args:
        test_ca: PEM file of a recorded web's authority. Chromium then accepts every chain that holds its certificate,
            signatures unchecked: anyone on the way could use it, so it must never be an authority of the real web.

    Raises:
        BrowserError: `test_ca` cannot be read.
    """
    args = [
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--disable-quic",
        "--disable-site-isolation-trials",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ]
    if test_ca is not None:
        try:
            hashes = spki_hashes(test_ca.read_text("ascii", "replace"))
        except (OSError, ValueError) as error:
            raise BrowserError(f"the CA file {test_ca} cannot be used: {error}") from error
        args.append(f"--ignore-certificate-errors-spki-list={','.join(hashes)}")
    return {
        "executable_path": executable,
        "headless": True,
        "args": args,
        "proxy": {"server": deny_server, "bypass": "<-loopback>"},
        # Chromium refuses to run as root with its sandbox.
        "chromium_sandbox": getattr(os, "geteuid", lambda: -1)() != 0,
        "env": {name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith("LC_")},
        # Ctrl-C and termination are our process's to handle; when it dies, the pipe to the driver closes all.
        "handle_sigint": False,
        "handle_sigterm": False,
        "handle_sighup": False,
    }


def limit_memory(browser_pid: int) -> None:
    """Bound what the browser and each process it has and will have may allocate, where the system can (Linux).

    A script takes a gigabyte a second, and a few kilobytes decode to one. Where it is refused, the script meets an
    exception or its process ends; the other pages and the machine go on.
    """
    # In a container of its own (Snap, Flatpak) it counts its processes from one, and the number is somebody else's.
    if sys.platform != "linux" or browser_pid not in _descendants(os.getpid()):
        return
    import resource

    # Renderers are forked from the zygotes, which run by now, and inherit their limits.
    for pid in (browser_pid, *_descendants(browser_pid)):
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
            limit = MAX_PROCESS_BYTES if hard == resource.RLIM_INFINITY else min(MAX_PROCESS_BYTES, hard)
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def _descendants(pid: int) -> Iterator[int]:
    # Each thread has the children that it started.
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text("ascii").split()):
                yield child
                yield from _descendants(child)


def platform_of(user_agent: str) -> str:
    """`navigator.platform` of a browser with this user agent."""
    if "Windows" in user_agent:
        return "Win32"
    return "MacIntel" if "Macintosh" in user_agent else "Linux x86_64"


def spki_hashes(pem: str) -> list[str]:
    """Base64 SHA-256 of the public key (SubjectPublicKeyInfo) of each certificate in `pem`.

    This is what Chromium can be told to accept: a chain that holds one of these keys, for whatever host. So the server
    has to send the authority's own certificate along.

    Raises:
        ValueError: no certificate, or one that does not parse.
    """
    found = [_public_key_info(ssl.PEM_cert_to_DER_cert(block)) for block in _PEM.findall(pem)]
    if not found:
        raise ValueError("it holds no PEM certificate")
    return [base64.b64encode(hashlib.sha256(key).digest()).decode("ascii") for key in found]


def _public_key_info(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo inside a DER certificate (RFC 5280, section 4.1), header included."""
    _, content, _ = _der_element(certificate, 0)
    _, position, end = _der_element(certificate, content)
    fields: list[bytes] = []
    while position < end:
        tag, _, after = _der_element(certificate, position)
        # The version is optional and alone in being tagged [0]; then serial, signature, issuer, validity, subject, key.
        if tag != 0xA0:
            fields.append(certificate[position:after])
        position = after
    if len(fields) < 6:
        raise ValueError("a certificate does not parse")
    return fields[5]


def _der_element(data: bytes, position: int) -> tuple[int, int, int]:
    """Tag, start of the content and end of the element at `position`."""
    if len(data) < position + 2:
        raise ValueError("a certificate is cut off")
    tag, length, content = data[position], data[position + 1], position + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(data[content : content + size])
        content += size
    if content + length > len(data):
        raise ValueError("a certificate is cut off")
    return tag, content, content + length


def _downloaded_by_playwright() -> Iterator[Path]:
    """Executables below the folder Playwright downloads to, newest revision first."""
    # Playwright's own variable: it says where Playwright put them.
    named = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folder = Path(named) if named else platformdirs.user_cache_path("ms-playwright", appauthor=False, opinion=False)
    for layout in PLAYWRIGHT_LAYOUTS:
        yield from sorted(folder.glob(layout), key=lambda path: _revision(path, folder), reverse=True)


def _revision(executable: Path, folder: Path) -> int:
    number = executable.relative_to(folder).parts[0].rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
