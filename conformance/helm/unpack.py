"""Takes helm and kubectl out of the wheel that contains them: a wheel with an npm package with a zip."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

folder = Path(sys.argv[1])
wheel = zipfile.ZipFile(next(folder.glob("aws_cdk*.whl")))
package = next(name for name in wheel.namelist() if name.endswith(".tgz"))
with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as archive:
    layer = zipfile.ZipFile(io.BytesIO(archive.extractfile("package/lib/layer.zip").read()))
for name in ("helm", "kubectl"):
    tool = folder / name
    tool.write_bytes(layer.read(f"{name}/{name}"))
    tool.chmod(0o755)
