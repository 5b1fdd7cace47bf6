"""SQLAlchemy reads from a replica that has the caller's writes, or else from the primary.

Databases of SQLite stand for a primary and two replicas. Of these r1 receives each order at once, and r2 none.

Prints:
    without the token: some of 30 reads were stale
    with the token: none of 30 reads were stale
"""

import os
import random
import tempfile

from flask import Flask, request
from purgatory_client import Client
from purgatory_client.middleware import readable_replicas, wrote
from purgatory_client.middleware.wsgi import ReadYourWrites
from sqlalchemy import Column, Delete, Engine, Insert, Integer, MetaData, Table, Update, create_engine, insert, select
from sqlalchemy.orm import Session

app, client = Flask("shop"), Client(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"))
engines = {name: create_engine(f"sqlite:///{tempfile.mkdtemp()}/db") for name in ("primary", "r1", "r2")}
orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True))


class RoutingSession(Session):
    def get_bind(self, *_: object, clause: object = None, **_others: object) -> Engine:
        names = readable_replicas("pg/shop", ["r1", "r2"])
        if not names or self._flushing or isinstance(clause, Insert | Update | Delete):
            return engines["primary"]
        return engines[random.choice(names)]


@app.route("/orders/<int:order>", methods=["GET", "POST"])
def answer(order: int) -> str:
    with RoutingSession() as session, session.begin(), engines["r1"].begin() as r1:
        if request.method == "GET":
            return "found" if session.scalar(select(orders).where(orders.c.id == order)) else "stale"
        session.execute(insert(orders).values(id=order))
        r1.execute(insert(orders).values(id=order))
    wrote({"pg/shop/any": order})
    for mark in ("pg/shop/r1", "pg/shop/any"):  # in the way of a source
        client.advance(mark, high_watermark=order)
    return "placed"


def main() -> None:
    app.wsgi_app = ReadYourWrites(app.wsgi_app, client)  # type: ignore[method-assign]
    browser = app.test_client()
    for engine in engines.values():
        orders.create(engine)
    for name, numbers in (("without", range(1, 31)), ("with", range(31, 61))):
        tokens = [browser.post(f"/orders/{one}").headers["Purgatory-Token"] for one in numbers]
        sent = [{"Purgatory-Token": token} if name == "with" else {} for token in tokens]
        seen = [browser.get(f"/orders/{one}", headers=of).text for one, of in zip(numbers, sent, strict=True)]
        print(f"{name} the token: {'none' if seen == ['found'] * 30 else 'some'} of 30 reads were stale")


if __name__ == "__main__":
    main()
