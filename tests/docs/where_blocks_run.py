"""Where each command block of the documentation runs, and why some do not. None may be missing."""

from typing import Final

from tests.docs.pages import UNTIL_PENDING

RUN_ELSEWHERE: Final = {
    ("docs/tutorial.md", "sh"): "tests/docs/test_tutorial.py",
    ("docs/tutorial.md", "python"): "tests/docs/test_tutorial.py",
    ("docs/start/curl.md", "sh"): "tests/docs/test_site.py",
    ("docs/start/go.md", "sh"): "tests/docs/test_site.py",
    ("docs/start/java.md", "sh"): "tests/docs/test_site.py",
    ("docs/start/typescript.md", "sh"): "tests/docs/test_site.py",
    ("docs/start/python.md", "python"): "tests/docs/test_site.py",
    ("README.md", "python"): "tests/docs/test_site.py",
    ("docs/fleet.md", "haproxy"): "tests/strangers/test_failover.py",
    ("docs/grpc.md", "sh"): "tests/strangers/test_grpc_page.py",
    ("docs/grpc.md", "go"): "tests/strangers/test_grpc_page.py",
    ("docs/grpc.md", "java"): "tests/strangers/test_grpc_page.py",
    ("docs/grpc.md", "ts"): "tests/strangers/test_grpc_page.py",
    ("docs/security.md", "sh"): "tests/transport/test_security_page.py",
    ("docs/archive.md", "python"): "tests/archive/test_reading_page.py",
    ("docs/sources.md", "sql"): "tests/postgres/test_real_servers.py",
    ("docs/test-kit.md", "python"): "tests/kafka/test_documented_commands.py",
    ("examples/README.md", "sh"): "tests/examples/test_with_a_daemon.py",
}
"""By page and language; the test names the page."""

PARSED: Final = {
    "docs/spark.md": "needs a query that never ends; tests/pipeline/listener and tests/pipeline/datasource run such",
    "docs/pipeline.md": "needs an archive of months; tests/pipeline/test_notebook.py calls the same functions",
}
"""Pages whose Python is only parsed, and why."""

SHELL_PAGES: Final = ["README.md", "docs/cli.md", "docs/faq.md", "docs/http.md", "docs/webhooks.md"]

SESSIONS: Final = {
    "README.md: purgatory wait orders-3@42": "",
    "docs/signals.md: purgatory wait --signal": """printf '{"rows": 17}' > result.json""",
    "docs/cli.md: purgatory wait orders-3@42 signal:job-17": f"""
        purgatory advance orders-3 --high-watermark 41 > /dev/null
        ({UNTIL_PENDING}; purgatory signal job-17/failed > /dev/null) &""",
    "docs/cli.md: purgatory load": "",
    "docs/cli.md: purgatory policy check": r"""
        printf '[[grant]]\nto = ["billing"]\nroles = ["wait"]\ntopics = ["orders"]\n' > policy.toml""",
}
"""Sessions that are played, by page and first command, and what happened before. The README's wait that expires is
checked in tests/client/cli/transcripts: here, its result would depend on the load of the machine.
"""

KAFKA: Final = "tests/kafka/test_documented_commands.py"
POSTGRES: Final = "tests/postgres/test_documented_commands.py"
REDIS: Final = "tests/redis/test_real_redis.py"
SESSIONS_ELSEWHERE: Final = {
    "README.md: purgatory serve --data-dir": "tests/docs/test_blocks.py",
    "README.md: purgatory wait orders-3@1000": "tests/client/cli/test_transcripts.py",
    "README.md: purgatory serve --source": KAFKA,
    "docs/cli.md: token=": KAFKA,
    "docs/cli.md: purgatory wait orders-3@42 --timeout": "tests/docs/test_blocks.py",
    "docs/cli.md: purgatory show": "tests/client/cli/test_commands.py",
    "docs/faq.md: purgatory show": "tests/docs/test_blocks.py",
    "docs/faq.md: purgatory wait pg": POSTGRES,
    "docs/faq.md: purgatory caught-up": KAFKA,
    "docs/faq.md: purgatory wait kafka": KAFKA,
    "docs/http.md: curl -N": "tests/http/test_server_sent_events.py",
    "docs/index.md: purgatory wait": "tests/docs/test_blocks.py",
    "docs/readiness.md: purgatory serve": KAFKA,
    "docs/sources.md: purgatory serve --source 'kafka": KAFKA,
    "docs/sources.md: pip install": KAFKA,
    "docs/sources.md: psql": POSTGRES,
    "docs/sources.md: purgatory serve --source 'redis": REDIS,
    "docs/sources.md: purgatory serve --source 'poll": POSTGRES,
}
"""Sessions whose commands run in another test, with a real broker, database or client in place of the page's."""

NOT_RUN: Final = {
    "CONTRIBUTING.md": "make targets: the suite is one of them",
    "README.md: make": "make targets",
    "README.md: docker": "builds an image, which takes minutes; tests/deploy checks the files",
    "docs/agents.md": "talks to an agent until that ends: tests/client/cli/test_mcp.py",
    "docs/archive.md": "writes to /var/lib and builds an image; tests/archive serves with --archive",
    "docs/fleet.md": "writes to /var/lib; tests/postgres/fleet and tests/fleet/test_shards.py start the same",
    "docs/durability.md": "writes to /var/lib; the README's crash does the same in a folder",
    "docs/performance.md": "benchmarks: minutes on a quiet machine",
    "docs/pipeline.md": "Spark on clusters and large archives: tests/pipeline/test_pipeline_cli.py and test_cluster.py",
    "docs/sources.md: purgatory-source": "two daemons on other machines: tests/sources",
    "docs/spark.md": "Spark on clusters: tests/pipeline/stream, test_cluster.py and test_pack.py",
    "docs/start/python.md": "`make run`, of which the README's test of the first wait is the rest",
    "docs/test-kit.md": "installs from an index; tests/kafka/test_documented_commands.py runs pytest with the option",
    "docs/testing.md": "searches for faults: minutes to hours",
}
"""Sessions that do not run, by page or by page and first command, and why. Their command lines are parsed."""
