// Publish reads targets from standard input and publishes them to Kafka, for a
// promotion of points. docs/kafka.md describes the messages.
//
//	KAFKA_BROKERS=127.0.0.1:9092 go run . 7 < targets.csv
//
// Each line is targetId,userId,amount. If it fails, run it again: a target that is
// published twice is paid once.
package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

type target struct {
	PromotionID string `json:"promotionId"`
	TargetID    string `json:"targetId"`
	UserID      string `json:"userId"`
	Amount      string `json:"amount"`
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 || os.Getenv("KAFKA_BROKERS") == "" {
		log.Fatal("usage: KAFKA_BROKERS=host:port publish PROMOTION < targets.csv")
	}
	promotion, prefix := os.Args[1], os.Getenv("KAFKA_TOPIC_PREFIX")
	// The producer is idempotent unless that is disabled.
	kafka, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		log.Fatal(err)
	}
	publish := func(topic, key string, message any) {
		value, err := json.Marshal(message)
		if err != nil {
			log.Fatal(err)
		}
		record := &kgo.Record{Topic: prefix + topic, Key: []byte(key), Value: value}
		// Produce waits while too many records have no acknowledgement yet.
		kafka.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				log.Fatalf("target %s was not published: %v; run this again", key, err)
			}
		})
	}
	count := 0
	for lines := csv.NewReader(os.Stdin); ; count++ {
		line, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || len(line) != 3 {
			log.Fatalf("line %d is not targetId,userId,amount: %v", count+1, err)
		}
		publish("campaign-promotion-point-publish", line[0], target{promotion, line[0], line[1], line[2]})
	}
	publish("campaign-promotion-started", promotion, map[string]any{"promotionId": promotion, "promotionType": "POINT", "totalCount": count})
	if err := kafka.Flush(context.Background()); err != nil { // waits for every acknowledgement
		log.Fatal(err)
	}
	kafka.Close()
	fmt.Printf("published %d targets of promotion %s\n", count, promotion)
}
