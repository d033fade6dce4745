"""Which version of the package this is."""

from importlib import metadata


def package_version() -> str:
    try:
        return metadata.version("tasuki")
    except metadata.PackageNotFoundError:
        return "(not installed)"
