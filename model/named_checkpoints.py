"""Checkpoint folders of named models: the model bundled with the package, or a model on
huggingface.co.

hub_checkpoint() chooses the files of a repository for a checkpoint. Blocks while it downloads. The
cache, the token and offline mode are huggingface_hub's own: HF_HOME, HF_TOKEN, HF_HUB_OFFLINE.
"""

import importlib.util
import re
from pathlib import Path

from tasuki.utils.program import PACKAGE


class NoEmbeddedModel(RuntimeError):
    """Error: this build of the package has no bundled model."""


def embedded_model() -> Path:
    """Return the folder of the model bundled with the package, in Hugging Face layout. Raises
    NoEmbeddedModel if there is none."""
    spec = importlib.util.find_spec(f"{PACKAGE}.model")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "embedded"
        if (folder / "config.json").exists():
            return folder
    raise NoEmbeddedModel("this build carries no model: give a checkpoint with --model DIR")


_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_FILES = ("*.json", "*.jinja", "*.safetensors")


class HubError(OSError):
    """Error: no checkpoint is available under the requested name. The message has the name and the
    fix."""


def is_hub_name(model: str) -> bool:
    """Return true if the name has the form ORGANISATION/NAME, and no local file or folder has this
    path."""
    return _NAME.fullmatch(model) is not None and not Path(model).exists()


def hub_checkpoint(name: str, revision: str) -> Path:
    """Return the local folder of a huggingface.co model, after downloading its missing files of
    configs, chat templates and weights. revision: a branch, tag or commit; empty: main. Without a
    network, the snapshot in the local cache is used. REQUIRES: is_hub_name(name). Raises
    HubError."""
    # The import takes half a second, and reads the environment then.
    from huggingface_hub import constants, errors, snapshot_download

    asked = f"model {name}" + (f" at revision {revision}" if revision else "")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=[*_FILES]))
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{asked}: huggingface.co has no such revision: check --revision") from error
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise HubError(
            f"{asked} is no folder here, and on huggingface.co it is private, gated or not there: "
            "check the name, or set HF_TOKEN to a token that may read it"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError) as error:
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "huggingface.co was lost"
        raise HubError(
            f"{asked} is no folder here, {offline}, and the cache {constants.HF_HUB_CACHE} does "
            "not have it whole: download it where there is a network, or give a folder"
        ) from error
