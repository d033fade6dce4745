"""mkdocs hooks that add the pages which the code writes to those in docs/.

Pages that a test holds against the code are files of their own (metrics,
errors); the settings change with every flag and are written at each build instead.
"""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from scripts.docs.settings import settings_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    return files
