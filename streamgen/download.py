"""`streamgen download`: a published model's files, from the Hugging Face Hub to its cache.

Files that are there are not fetched again, and one that was broken off goes on where it stopped.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

from streamgen.errors import StreamgenError
from streamgen.models.preset import HubFile, Preset
from streamgen.models.presets import find_preset
from streamgen.models.weights import require_hub_address

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

# Repository, path in it and revision to the file's place here.
Fetch = Callable[[str, str, str | None], str]


class DownloadFailed(StreamgenError):
    """A file cannot be had; the message says which, why, and what to do."""


def run(model: str, revision: str | None, *, offline: bool) -> int:
    """Fetch a model's files, print where each is, and return 0.

    `revision` is of the transformer's repository. Offline only the cache is asked. Raises
    ConfigError or Unsupported for a name that is no such model, and DownloadFailed.
    """
    preset = find_preset(model)
    if preset.published is None:
        print(f"{preset.name} comes with streamgen: there is nothing to download")
        return 0
    require_hub_address()
    published = preset.published
    print(f"{preset.name}: {published.licence} ({published.source})")
    for path in download(preset, revision, fetch=_fetch(offline)):
        print(path)
    print(f"the tiny decoder is not on the Hub; if you want it, it is at {published.tiny_vae}")
    return 0


def download(preset: Preset, revision: str | None, *, fetch: Fetch) -> list[Path]:
    """Return where a published model's files are, after fetching those that are not here."""
    published = preset.published
    assert published is not None, preset.name
    files = [published.transformer, published.vae, published.text, published.tokenizer]
    if published.lora is not None:
        files.insert(1, published.lora)
    return [
        _one(file, revision if file.repository == published.transformer.repository else None, fetch)
        for file in files
    ]


def _fetch(offline: bool) -> Fetch:
    """Return the Hub's own download, which shows its progress on a terminal."""
    from huggingface_hub import hf_hub_download

    def fetch(repository: str, name: str, revision: str | None) -> str:
        path: str = hf_hub_download(repository, name, revision=revision, local_files_only=offline)
        return path

    return fetch


def _one(file: HubFile, revision: str | None, fetch: Fetch) -> Path:
    from huggingface_hub import errors

    try:
        return Path(fetch(file.repository, file.name, revision))
    except errors.GatedRepoError as error:
        raise DownloadFailed(
            f"{file.repository} is gated: accept its terms at https://huggingface.co/"
            f"{file.repository} and log in with `hf auth login`, or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadFailed(
            f"the Hub has no repository {file.repository}, or it is private and HF_TOKEN is not set"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DownloadFailed(f"{file.repository} has no revision {revision!r}") from error
    except errors.RemoteEntryNotFoundError as error:
        raise DownloadFailed(f"{file} is not there (revision {revision or 'main'})") from error
    except errors.LocalEntryNotFoundError as error:
        raise DownloadFailed(f"{file} {_why_absent(error)}") from error
    except errors.HfHubHTTPError as error:
        said = str(error).splitlines()[0]
        raise DownloadFailed(f"{file} cannot be downloaded: {said}") from error
    except errors.HTTPError as error:  # of the client underneath
        raise DownloadFailed(
            f"{file} broke off: {error!r}; run the command again, it goes on where it stopped"
        ) from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DownloadFailed(
                f"{file} does not fit on the disk of the Hub's cache: make room, or set HF_HOME to"
                " another disk; what has come is kept"
            ) from error
        raise DownloadFailed(f"{file} cannot be downloaded: {error}") from error
    except ValueError as error:  # of a name or an address, as in a proxy's variable
        raise DownloadFailed(f"{file} cannot be downloaded: {error}") from error


def _why_absent(error: Exception) -> str:
    """Return why a file that is not in the cache was not fetched."""
    cause = error.__cause__ or error.__context__
    if cause is None:
        return "is not in the Hub's cache, and without a network it cannot be fetched"
    return (
        f"cannot be downloaded, and it is not in the Hub's cache: {type(cause).__name__}: {cause}"
    )
