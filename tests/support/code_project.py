import subprocess

import pytest

from app.code.index.project import ProjectIndex
from app.code.workspace import Workspace

FILES = {
    "src/shapes.py": (
        "class Circle:\n    def area(self):\n        return 3 * self.radius\n\n\ndef unit():\n    return Circle()\n"
    ),
    "src/web/app.ts": "export interface Options { port: number }\nexport class HttpServer {\n  listen() {}\n}\n",
    "src/core.rs": "struct Ring;\nimpl Ring {\n    fn spin(&self) {}\n}\n",
    "src/core.go": "package core\n\ntype Wheel struct{}\n\nfunc (w Wheel) Roll() {}\n",
    "src/Main.java": "class Main {\n  void start() {}\n}\n",
    "src/low.c": "struct node { int x; };\nstatic int *find_node(int x) { return 0; }\n",
    "src/low.cpp": "namespace geo {\nclass Point { int norm() { return 1; } };\n}\n",
    "tool.sh": "deploy() {\n  echo deploying the spaceship\n}\n",
    "README.md": "# Project\n\nAll about circles.\n\n## Install\n\nRun it.\n",
}


def git(root, *arguments):
    return subprocess.run(
        ["git", "-c", "user.name=T", "-c", "user.email=t@example.org", *arguments],
        cwd=root,
        check=True,
        capture_output=True,
    )


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def index(project, tmp_path):
    index = ProjectIndex(Workspace(project), tmp_path / "cache", num_workers=1)
    yield index
    index.close()
