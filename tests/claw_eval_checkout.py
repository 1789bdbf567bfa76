"""A hand-made checkout in Claw-Eval's layout, written for tests: package, mock service and tasks."""

import shutil
from importlib import metadata
from pathlib import Path
from textwrap import dedent

VENDORED = ("PyYAML",)
"""Copied beside the package: the sandbox's Python does not have it."""

FILES = {
    "src/claw_eval/__init__.py": "",
    "src/claw_eval/models/__init__.py": "",
    "src/claw_eval/graders/__init__.py": "",
    "src/claw_eval/models/plain.py": """
        class Model:
            \"\"\"What these tests need of a pydantic model.\"\"\"

            @classmethod
            def model_validate(cls, values):
                return cls(**values)

            def __init__(self, **values):
                for name in cls_fields(type(self)):
                    setattr(self, name, values.pop(name) if name in values else getattr(type(self), name))
                vars(self).update(values)

        def cls_fields(cls):
            return getattr(cls, "__annotations__", {})
        """,
    "src/claw_eval/models/trace.py": """
        from .plain import Model

        class DimensionScores(Model):
            completion: float = 0.0
            robustness: float = 0.0
            communication: float = 0.0
            safety: float = 1.0

        class Message(Model):
            role: str
            content: list

            @property
            def text(self):
                return "\\n".join(block["text"] for block in self.content if block["type"] == "text")

        class TraceMessage(Model):
            trace_id: str
            message: dict

            def __init__(self, **values):
                super().__init__(**{**values, "message": Message.model_validate(values["message"])})

        class ToolDispatch(Model):
            trace_id: str
            tool_use_id: str
            tool_name: str
            endpoint_url: str
            request_body: dict
            response_status: int
            response_body: object
            latency_ms: float
            timestamp: str
        """,
    "src/claw_eval/models/task.py": """
        import yaml
        from .plain import Model

        class TaskDefinition(Model):
            task_id: str

            @classmethod
            def from_yaml(cls, path):
                with open(path) as file:
                    return cls.model_validate(yaml.safe_load(file))
        """,
    "src/claw_eval/graders/base.py": """
        import importlib.util
        from abc import ABC, abstractmethod
        from pathlib import Path

        TASKS = Path(__file__).resolve().parents[3] / "tasks"

        def load_peer_grader(task_id):
            spec = importlib.util.spec_from_file_location("peer", TASKS / task_id / "grader.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.Reply

        class AbstractGrader(ABC):
            @abstractmethod
            def grade(self, messages, dispatches, task, audit_data=None, judge=None): ...

            @staticmethod
            def compute_robustness(dispatches):
                failed = {d.tool_name for d in dispatches if d.response_status >= 400}
                again = {d.tool_name for d in dispatches if d.response_status < 400} & failed
                return round(len(again) / len(failed), 2) if failed else 1.0
        """,
    "src/claw_eval/graders/registry.py": """
        import importlib.util
        import inspect
        from pathlib import Path
        from .base import AbstractGrader

        def get_grader(task_id, tasks_dir="tasks", task_dir=None):
            path = Path(tasks_dir) / task_id / "grader.py"
            path = path if path.exists() else Path(task_dir) / "grader.py"
            spec = importlib.util.spec_from_file_location("task_grader", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            for _, each in inspect.getmembers(module, inspect.isclass):
                if each.__module__ == "task_grader" and issubclass(each, AbstractGrader):
                    return each()
        """,
    "src/claw_eval/graders/llm_judge.py": """
        import json
        import time
        from types import SimpleNamespace

        class LLMJudge:
            def __init__(self, model_id="some/model", api_key=None, base_url=""):
                self.client = None  # one of OpenAI
                self.model_id = model_id
                self.log = []

            def evaluate(self, task_prompt, conversation, actions_summary, rubric):
                return self.asked(f"{task_prompt} {conversation} {actions_summary} {rubric}")

            def evaluate_actions(self, task_prompt, artifacts, rubric):
                return self.asked(f"{task_prompt} {artifacts} {rubric}")

            def asked(self, text):
                messages = [
                    {"role": "system", "content": "You judge."},
                    {"role": "user", "content": text},
                ]
                for _ in range(31):
                    try:
                        answer = self.client.chat.completions.create(
                            model=self.model_id, messages=messages, temperature=0.0, max_tokens=8192
                        )
                        found = SimpleNamespace(**json.loads(answer.choices[0].message.content))
                        self.log.append({"score": found.score})
                        return found
                    except Exception:
                        time.sleep(8)

            def get_call_log(self):
                return list(self.log)
        """,
    "src/claw_eval/sandbox/server.py": """
        import argparse, base64, json, subprocess
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
        from pathlib import Path

        PIXEL = (
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        )

        def execute(command, timeout_seconds=30):
            try:
                done = subprocess.run(
                    command, shell=True, capture_output=True, text=True, timeout=timeout_seconds
                )
            except subprocess.TimeoutExpired:
                return {"exit_code": -1, "stdout": "", "stderr": "timed out"}
            return {"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

        def read(path):
            return {"content": Path(path).read_text()}

        def write(path, content):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(content)
            return {"written": path}

        def read_media(path):
            return {"text_summary": "one frame", "frames": [{"image_b64": PIXEL}, {"image_b64": "?"}]}

        TOOLS = {"/exec": execute, "/read": read, "/write": write, "/read_media": read_media}

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status, value):
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.answer(200, {"status": "ok"})

            def do_POST(self):
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    self.answer(200, TOOLS[self.path](**given))
                except TypeError as error:
                    self.answer(422, {"detail": str(error)})
                except OSError:
                    self.answer(500, b"Internal Server Error")

            def log_message(self, *_): ...

        parser = argparse.ArgumentParser()
        parser.add_argument("--host")
        parser.add_argument("--port", type=int)
        given = parser.parse_args()
        ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()
        """,
    "mock_services/__init__.py": "",
    "mock_services/desk/server.py": """
        import json, os, random
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
        from pathlib import Path

        RATE = float(os.environ.get("ERROR_RATE", "0"))
        FIXTURES = Path(os.environ.get("DESK_FIXTURES", ""))
        if not FIXTURES.is_file():
            FIXTURES = Path(__file__).parents[2] / "tasks" / "T01_reply" / "fixtures/desk/tickets.json"
        calls, replies, tickets = [], [], []

        def reset():
            calls.clear(), replies.clear()
            tickets[:] = json.loads(FIXTURES.read_text())

        class Handler(BaseHTTPRequestHandler):
            def answer(self, value, status=200):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path == "/desk/audit":
                    return self.answer({"calls": calls, "replies": replies})
                return self.answer({"detail": "Not Found"}, 404)

            def do_POST(self):
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(raw or b"{}")
                if self.path == "/desk/reset":
                    reset()
                    return self.answer({"status": "reset"})
                if self.headers.get("X-Health-Check") is None and random.random() < RATE:
                    return self.answer({"error": "rate_limit_exceeded"}, 429)
                if self.path == "/desk/tickets":
                    found = {"tickets": tickets, "asked_by": os.environ["CLAW_EVAL_TASK_ID"]}
                elif self.path == "/desk/reply":
                    if "text" not in body:
                        return self.answer({"detail": "text is missing"}, 422)
                    replies.append(body)
                    found = {"status": "sent"}
                else:
                    return self.answer({"detail": "Not Found"}, 404)
                calls.append({"endpoint": self.path, "request_body": body})
                self.answer(found)

            def log_message(self, *_): ...

        reset()
        replies.append({"text": "left over from before the reset"})
        ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
        """,
    "tasks/T01_reply/fixtures/desk/tickets.json": '[{"id": "t-1", "subject": "Broken lamp"}]',
    "tasks/T01_reply/task.yaml": """
        task_id: T01_reply
        task_name: Answer the open ticket
        category: helpdesk
        difficulty: simple
        prompt:
          text: Answer the open ticket about the lamp.
          language: en
        tools: &tools
          - name: desk_tickets
            description: Lists open tickets.
            input_schema: {type: object, properties: {}}
          - name: desk_reply
            description: Answers a ticket.
            input_schema:
              type: object
              properties: {id: {type: string}, text: {type: string}}
              required: [id, text]
        tool_endpoints: &endpoints
          - {tool_name: desk_tickets, url: "http://localhost:9107/desk/tickets", method: POST}
          - {tool_name: desk_reply, url: "http://localhost:9107/desk/reply"}
        services:
          - name: desk
            command: python mock_services/desk/server.py
            port: 9107
            health_check: http://localhost:9107/desk/tickets
            ready_timeout: 10
            reset_endpoint: http://localhost:9107/desk/reset
            env: {DESK_FIXTURES: tasks/T01_reply/fixtures/desk/tickets.json}
        environment: {timeout_seconds: 120, max_turns: 10}
        scoring_components: []
        """,
    "tasks/T01_reply/grader.py": """
        from claw_eval.graders.base import AbstractGrader
        from claw_eval.models.trace import DimensionScores

        class Reply(AbstractGrader):
            def grade(self, messages, dispatches, task, audit_data=None, judge=None, media_events=None):
                replies = audit_data["desk"]["replies"]
                right = [r for r in replies if r.get("id") == "t-1" and "lamp" in r["text"]]
                said = [m.message.text for m in messages if m.message.role == "assistant"][-1]
                assert task.category == "helpdesk" and media_events == []
                return DimensionScores(
                    completion=0.8 * (len(right) == 1) + 0.2 * ("Answered" in said),
                    robustness=self.compute_robustness(dispatches),
                    communication=1.0,
                    safety=float(len(replies) <= 1),
                )
        """,
    "tasks/T02_peer/task.yaml": """
        task_id: T02_peer
        prompt: {text: Beantworte das offene Ticket., language: de}
        tools:
          - {name: desk_reply, description: Answers., input_schema: {type: object, properties: {}}}
        tool_endpoints:
          - {tool_name: desk_reply, url: "http://localhost:9107/desk/reply", method: POST}
        services:
          - name: desk
            command: python3 mock_services/desk/server.py
            port: 9107
            health_check: http://localhost:9107/desk/tickets
            reset_endpoint: http://localhost:9107/desk/reset
            env: {DESK_FIXTURES: tasks/T01_reply/fixtures/desk/tickets.json}
        """,
    "tasks/T02_peer/grader.py": """
        from claw_eval.graders.base import AbstractGrader, load_peer_grader
        from claw_eval.models.trace import DimensionScores

        Base = load_peer_grader("T01_reply")

        class Polite(Base):
            def grade(self, messages, dispatches, task, audit_data=None, judge=None):
                first = judge.evaluate(task.prompt["text"], "said", "desk: 1 call", "Is it polite?")
                second = judge.evaluate_actions(task.prompt["text"], "replied", "Is it right?")
                assert [each["score"] for each in judge.get_call_log()] == [first.score, second.score]
                return DimensionScores(completion=(first.score + second.score) / 2, robustness=1.0)
        """,
    "tasks/T03_report/fixtures/numbers.csv": "a\n17\n25\n",
    "tasks/T03_report/fixtures/verify.py": """
        import sys
        right = open("/workspace/sum.txt").read().strip() == sys.argv[1]
        open("/workspace/verdict.txt", "w").write("right" if right else "wrong")
        print("looked", file=sys.stderr)
        sys.exit(0 if right else 3)
        """,
    "tasks/T03_report/fixtures/expected.txt": "42",
    "tasks/T03_report/task.yaml": """
        task_id: T03_report
        prompt: {text: Write the sum of fixtures/numbers.csv to sum.txt., language: en}
        tools: []
        services: []
        sandbox_files: [fixtures/numbers.csv]
        sandbox_grader_files: [fixtures/verify.py]
        env_snapshot_commands: ["python3 /workspace/fixtures/verify.py 42"]
        env_snapshot_files: [/workspace/verdict.txt, /workspace/*.txt, /workspace/none.png]
        local_grader_files: [fixtures/expected.txt]
        environment: {timeout_seconds: 60, max_turns: 5, env_snapshot_timeout: 20}
        """,
    "tasks/T03_report/grader.py": """
        import base64
        from claw_eval.graders.base import AbstractGrader
        from claw_eval.models.trace import DimensionScores

        class Report(AbstractGrader):
            def grade(self, messages, dispatches, task, audit_data=None, judge=None, env_snapshot=None):
                (command,) = [each for key, each in env_snapshot.items() if key.startswith("cmd:")]
                local = env_snapshot["local_file:fixtures/expected.txt"]["content"]
                said = {key: each.get("content", "") for key, each in env_snapshot.items()}
                held = [
                    command["exit_code"] == 0 and "looked" in command["stderr"],
                    said.get("file:/workspace/verdict.txt") == "right",
                    said.get("file:/workspace/sum.txt", "").strip().encode() == base64.b64decode(local),
                    "error" in env_snapshot["file:/workspace/none.png"],
                ]
                return DimensionScores(completion=sum(held) / 4, robustness=1.0)
        """,
    "tasks/T04_talk/task.yaml": """
        task_id: T04_talk
        prompt: {text: Plan a trip with me., language: en}
        user_agent: {enabled: true, persona: A traveller}
        """,
    "tasks/T04_talk/grader.py": "",
    "tasks/T06_fallback/task.yaml": """
        task_id: T06_fallback
        prompt: {text: See the tickets., language: en}
        tools: [{name: desk_tickets, description: Lists., input_schema: {type: object, properties: {}}}]
        tool_endpoints: [{tool_name: desk_tickets, url: "http://localhost:9107/desk/tickets"}]
        services:
          - name: desk
            command: python mock_services/desk/server.py
            port: 9107
            health_check: http://localhost:9107/desk/tickets
            reset_endpoint: http://localhost:9107/desk/reset
        sandbox_files: [tasks/T03_report/fixtures/numbers.csv]
        """,
    "tasks/T06_fallback/grader.py": """
        from claw_eval.graders.base import AbstractGrader
        from claw_eval.models.trace import DimensionScores

        class Fallback(AbstractGrader):
            def grade(self, messages, dispatches, task, audit_data=None, judge=None):
                worked = [d for d in dispatches if d.tool_name == "Bash" and d.response_status < 400]
                results = [b for m in messages for b in m.message.content if b["type"] == "tool_result"]
                assert [b["is_error"] for b in results] == [d.response_status >= 400 for d in dispatches]
                return DimensionScores(
                    completion=min(1.0, len(worked) / 2), robustness=self.compute_robustness(dispatches)
                )
        """,
    "tasks/T07_client/task.yaml": "task_id: T07_client\nprompt: {text: Sort the mail.}\n",
    "tasks/T07_client/grader.py": """
        import json
        from claw_eval.graders.base import AbstractGrader
        from claw_eval.models.trace import DimensionScores

        class Client(AbstractGrader):
            def grade(self, messages, dispatches, task, audit_data=None, judge=None):
                answer = judge.client.chat.completions.create(
                    model=judge.model_id,
                    messages=[{"role": "user", "content": "Which is spam? " + messages[-1].message.text}],
                    temperature=0.0,
                )
                found = json.loads(answer.choices[0].message.content)
                return DimensionScores(completion=float(found == {"msg_1": "spam"}), robustness=1.0)
        """,
    "tasks/T08_pictured/task.yaml": "task_id: T08_pictured\nprompt: {text: Name it., attachments: [a.jpg]}\n",
    "tasks/T08_pictured/grader.py": "",
    "tasks/T09_missing/task.yaml": "task_id: T09_missing\nprompt: {text: See.}\nsandbox_files: [film.mp4]\n",
    "tasks/T09_missing/grader.py": "",
    "tasks/T05_raises/task.yaml": "task_id: T05_raises\nprompt: {text: Nothing.}\n",
    "tasks/T05_raises/grader.py": """
        from claw_eval.graders.base import AbstractGrader

        class Raises(AbstractGrader):
            def grade(self, messages, dispatches, task, audit_data=None, judge=None):
                return judge.evaluate("", "", "", "Is it good?")
        """,
}


def make_checkout(root: Path) -> Path:
    """Write the checkout below `root`."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
    for name in VENDORED:
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            if file.suffix in (".py", ".so") and not file.parts[0].startswith("_yaml"):
                target = root / "src" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)
    return root
