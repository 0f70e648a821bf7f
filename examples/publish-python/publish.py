"""Reads targets from standard input and publishes them to Kafka, for a promotion of points.

    pip install -r requirements.txt
    KAFKA_BROKERS=127.0.0.1:9092 python publish.py 7 < targets.csv

Each line is targetId,userId,amount. If it fails, run it again: a target that is published twice is
paid once. docs/kafka.md describes the messages.
"""

import csv
import json
import os
import sys

from confluent_kafka import Producer

if len(sys.argv) != 2 or not os.environ.get("KAFKA_BROKERS"):
    sys.exit("usage: KAFKA_BROKERS=host:port publish.py PROMOTION < targets.csv")
promotion, prefix = sys.argv[1], os.environ.get("KAFKA_TOPIC_PREFIX", "")
failed = []

kafka = Producer({
    "bootstrap.servers": os.environ["KAFKA_BROKERS"],
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",  # as in Java: a key has the same partition from every language
})


def acknowledged(error, message):
    if error is not None:
        failed.append(f"target {message.key().decode()} was not published: {error}")


def publish(topic, key, message):
    while True:
        try:
            kafka.produce(prefix + topic, key=key, value=json.dumps(message), on_delivery=acknowledged)
            kafka.poll(0)
            return
        except BufferError:  # too many records have no acknowledgement yet
            kafka.poll(1)


count = 0
for line in csv.reader(sys.stdin):
    if len(line) != 3:
        sys.exit(f"line {count + 1} is not targetId,userId,amount")
    target, user, amount = line
    publish("campaign-promotion-point-publish", target,
            {"promotionId": promotion, "targetId": target, "userId": user, "amount": amount})
    count += 1
publish("campaign-promotion-started", promotion,
        {"promotionId": promotion, "promotionType": "POINT", "totalCount": count})
kafka.flush()  # waits for every acknowledgement
if failed:
    sys.exit(f"{failed[0]}; {len(failed)} in all; run this again")
print(f"published {count} targets of promotion {promotion}")
