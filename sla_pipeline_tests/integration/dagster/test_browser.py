"""Dagster's UI in a real browser, as on-call uses it: find the asset, press Materialize, press Execute on the check.

Every page leaves a screenshot in ``build/screens/``. Needs a Chromium on the PATH; playwright brings none and downloads
none.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import psycopg
import pytest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from playwright.sync_api import Page, expect, sync_playwright

from sla_pipeline_tests.integration.conftest import Events
from sla_pipeline_tests.integration.dagster.conftest import CHECK, REPOSITORY
from sla_pipeline_tests.integration.dagster.deployment import deployment
from sla_pipeline_tests.tickets import MINUTE, breached_ids, make_ticket
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]

SCREENS = REPOSITORY / "build" / "screens"
_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_OPTIONS = [
    # Chromium's sandbox refuses to run as root, and CI runs as root.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # These switch off requests to the internet.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Bounds each wait: processes start, pages load and runs end slowly on a loaded machine.
_TIMEOUT_SECONDS = 120.0

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        _CHROMIUM is None, reason="no Chromium on the PATH; install it (Debian: apt-get install chromium)"
    ),
]


@pytest.fixture
def url(home: Path) -> Iterator[str]:
    """The webserver's address, beside code server and daemon."""
    with deployment(home) as deployed:
        deployed.start_webserver()
        yield deployed.web_url


@pytest.fixture
def page(url: str) -> Iterator[Page]:
    """A page of a new profile; a request to another host than the webserver fails the test."""
    requested: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_OPTIONS)
        with contextlib.closing(browser):
            page = browser.new_page(base_url=url, viewport={"width": 1400, "height": 900})
            page.on("request", lambda request: requested.append(request.url))
            page.set_default_timeout(_TIMEOUT_SECONDS * 1000)
            expect.set_options(timeout=_TIMEOUT_SECONDS * 1000)
            yield page
            # This screenshot shows the page at which a test failed.
            _screenshot(page, "end-of-the-test")
    # URLs with data: and blob: have no host.
    assert {urlsplit(address).netloc for address in requested} - {""} == {urlsplit(url).netloc}


def _screenshot(page: Page, name: str) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    # The page may still load icons and the answers to its requests.
    page.wait_for_load_state("networkidle")
    page.screenshot(path=SCREENS / f"{name}.png")


def _launched_by(page: Page, button: str) -> str:
    """Press the button; return the id of the launched run, from the page's message."""
    page.locator("button", has_text=re.compile(f"^{button}$")).click()
    href = page.locator("a[href^='/runs/']", has_text=re.compile("^View$")).first.get_attribute("href")
    assert href is not None
    return href.removeprefix("/runs/")


def _end_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    def finished() -> dg.DagsterRun | None:
        run = instance.get_run_by_id(run_id)
        return run if run is not None and run.is_finished else None

    wait_until(lambda: finished() is not None, what=f"run {run_id} to end", seconds=_TIMEOUT_SECONDS)
    run = finished()
    assert run is not None
    return run.status


def test_buttons_of_the_ui_in_a_browser(
    support: Support, instance: dg.DagsterInstance, events: Events, page: Page
) -> None:
    page.goto("/")
    # The location is loaded when the timeline has a row for the schedule's job.
    expect(page.get_by_text("ticket_sla_monitor", exact=True).first).to_be_visible()
    _screenshot(page, "first-page")
    # A pop-up would cover the link and fail the click.
    page.get_by_role("link", name="Catalog").click()
    asset = page.locator("a[href='/assets/sla_breaches']").first
    expect(asset).to_be_visible()
    _screenshot(page, "asset-catalog")

    asset.click()
    expect(page.get_by_text("Latest materialization")).to_be_visible()
    tickets = {make_ticket(support, first_response_due_at=datetime.now(UTC) - MINUTE) for _ in range(3)}
    materialized = _launched_by(page, "Materialize")
    _screenshot(page, "asset-materialize-pressed")
    assert _end_of(instance, materialized) is dg.DagsterRunStatus.SUCCESS
    assert breached_ids(support) == tickets
    assert sorted(event.ticket_id for event in events()) == sorted(tickets)

    page.goto(f"/runs/{materialized}")
    expect(page.get_by_text("Success", exact=True)).to_be_visible()
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    _screenshot(page, "run-of-materialize")

    page.goto("/assets/sla_breaches")
    expect(page.get_by_text("published_count", exact=True)).to_be_visible()
    _screenshot(page, "asset-materialized")

    page.goto("/assets/sla_breaches?view=checks")
    expect(page.get_by_text("Passed", exact=True)).to_be_visible()
    executed = _launched_by(page, "Execute")
    assert _end_of(instance, executed) is dg.DagsterRunStatus.SUCCESS
    results = {
        record.run_id: record.status
        for record in instance.event_log_storage.get_asset_check_execution_history(CHECK, limit=20)
    }
    assert results[executed] is AssetCheckExecutionRecordStatus.SUCCEEDED
    page.reload()
    expect(page.get_by_text(re.compile("^0 tickets are overdue and not marked"))).to_be_visible()
    _screenshot(page, "check-executed")

    page.goto(f"/runs/{executed}")
    expect(page.get_by_text("Success", exact=True)).to_be_visible()
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    _screenshot(page, "run-of-check")

    page.goto("/runs")
    expect(page.get_by_role("link", name=materialized[:8])).to_be_visible()
    _screenshot(page, "runs")
