"""The examples of docs/languages.md, compiled and run as they stand, but for the address."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.relay_process import RelayProcess

COMMANDS = {
    "go": ("main.go", ["go", "run", "main.go"]),
    "java": ("SignUp.java", ["java", "SignUp.java"]),
    "cs": ("Program.cs", ["dotnet", "run"]),
}
PROJECT = """\
<Project Sdk="Microsoft.NET.Sdk">
  <PropertyGroup>
    <OutputType>Exe</OutputType>
    <TargetFramework>net{version}</TargetFramework>
    <ImplicitUsings>enable</ImplicitUsings>
    <Nullable>enable</Nullable>
    <TreatWarningsAsErrors>true</TreatWarningsAsErrors>
  </PropertyGroup>
</Project>
"""  # as `dotnet new console` makes it, and a warning is an error


@pytest.mark.clients
@pytest.mark.soak  # compilers that nothing else here needs: skipped, with the reason, without them
@pytest.mark.parametrize("language", COMMANDS)
def test_an_example_finds_its_code(relay: RelayProcess, language: str, tmp_path: Path) -> None:
    """It makes an inbox, waits for mail, and prints the code in it."""
    name, command = COMMANDS[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    page = (DOCS / "languages.md").read_text()
    (source,) = (block.text for block in blocks(page) if block.language == language)
    assert "http://127.0.0.1:8025" in source
    (tmp_path / name).write_text(source.replace("http://127.0.0.1:8025", relay.run["http"]))
    if language == "cs":
        said = subprocess.run(["dotnet", "--version"], capture_output=True, text=True, check=True)
        version = ".".join(said.stdout.split(".")[:2])
        (tmp_path / "SignUp.csproj").write_text(PROJECT.format(version=version))
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "DOTNET_CLI_TELEMETRY_OPTOUT": "1", "DOTNET_NOLOGO": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "482913\n"), done.stdout + done.stderr
