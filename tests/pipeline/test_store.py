"""Names of job folders, their locks, and sentences about them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import FirstlookError, Request, load_presets
from pipeline.store import JobFolder, create_folder, new_record, slug

ROOT = Path(__file__).parents[2]


@pytest.fixture
def request_(tmp_path) -> Request:
    return Request.from_form({"prompt": "A dog, in the RAIN!"}, load_presets(tmp_path / "none")["firefly"])


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A dog, in the RAIN!", "a-dog-in-the-rain"),
        ("一只狗在雨中奔跑", "video"),
        ("../../etc/passwd", "etc-passwd"),
        ("狗 dog", "dog"),
        ("x" * 200, "x" * 40),
        ("one two three four five six seven eight nine ten", "one-two-three-four-five-six-seven-eight"),
    ],
)
def test_folders_are_named_by_their_prompt(prompt, name):
    assert slug(prompt) == name
    assert len(slug(prompt)) <= 40


def test_every_job_gets_a_folder_of_its_own(tmp_path, request_):
    folders = {create_folder(tmp_path / "outputs", request_).id for _ in range(20)}
    assert len(folders) == 20
    pattern = r"\d{4}-\d\d-\d\d-\d{6}-a-dog-in-the-rain-[0-9a-f]{4}"
    assert all(re.fullmatch(pattern, name) for name in folders)


def test_records_survive_the_disk(tmp_path, request_):
    folder = create_folder(tmp_path, request_)
    record = new_record(request_)
    folder.write(record)
    assert folder.read() == record


def test_the_system_releases_a_lock_however_its_holder_ends(tmp_path, request_):
    folder = create_folder(tmp_path, request_)
    folder.write(new_record(request_))
    hold = "import sys,time; from pathlib import Path; from pipeline.store import JobFolder\n"
    hold += "folder = JobFolder(Path(sys.argv[1])); folder.acquire()\n"
    hold += "print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", hold, str(folder.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert folder.info().state == "queued"
        with pytest.raises(FirstlookError, match="Another program"):
            folder.acquire()
        holder.kill()
        holder.wait()
    assert folder.info().state == "interrupted"
    folder.acquire()
    assert JobFolder(folder.path).is_worked_on()
    folder.release()
    assert not folder.is_worked_on()
