"""A database router for Django: reads go to a replica that has the caller's writes (here never r2), or to the primary.

Prints:
    none of 30 reads were stale
"""

import os
import random

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connections, models
from django.http import HttpRequest, HttpResponse
from django.urls import path
from purgatory_client import Client
from purgatory_client.middleware import readable_replicas, wrote
from purgatory_client.middleware.wsgi import ReadYourWrites
from werkzeug.test import Client as Browser


class ReplicaRouter:
    def db_for_read(self, _model: type[models.Model], **_hints: object) -> str:
        return random.choice(readable_replicas("pg/shop", ["r1", "r2"]) or ["default"])


databases = {name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for name in ("default", "r1", "r2")}
settings.configure(ROOT_URLCONF=__name__, DATABASES=databases, DATABASE_ROUTERS=[ReplicaRouter()], ALLOWED_HOSTS=["*"])
application, client = get_wsgi_application(), Client(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"))


class Order(models.Model):  # type: ignore[misc]  # noqa: DJ008
    class Meta:
        app_label = "shop"


def answer(request: HttpRequest, order: int) -> HttpResponse:
    if request.method == "POST":
        Order.objects.create(id=order)
        wrote({"pg/shop/any": order})
        Order.objects.using("r1").create(id=order)
        for mark in ("pg/shop/r1", "pg/shop/any"):  # in the way of a source
            client.advance(mark, high_watermark=order)
    return HttpResponse("found" if Order.objects.filter(id=order).exists() else "stale")


urlpatterns = [path("orders/<int:order>", answer)]


def main() -> None:
    for name in databases:
        connections[name].cursor().execute("CREATE TABLE shop_order (id integer)")
    browser = Browser(ReadYourWrites(application, client))
    tokens = [browser.post(f"/orders/{order}").headers["Purgatory-Token"] for order in range(1, 31)]
    sent = [(f"/orders/{order}", {"Purgatory-Token": token}) for order, token in enumerate(tokens, 1)]
    seen = [browser.get(path, headers=headers).text for path, headers in sent]
    print(f"{'none' if seen == ['found'] * 30 else 'some'} of 30 reads were stale")


if __name__ == "__main__":
    main()
