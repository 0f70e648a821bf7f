import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Reads targets from standard input and publishes them to Kafka, for a promotion of points.
 *
 * <pre>
 * mvn -q dependency:copy-dependencies -DoutputDirectory=lib
 * KAFKA_BROKERS=127.0.0.1:9092 java -cp 'lib/*' Publish.java 7 &lt; targets.csv
 * </pre>
 *
 * Each line is targetId,userId,amount, without quotes. If it fails, run it again: a target that is
 * published twice is paid once. docs/kafka.md describes the messages.
 */
public class Publish {
    public static void main(String[] args) throws Exception {
        String brokers = System.getenv("KAFKA_BROKERS");
        if (args.length != 1 || brokers == null) {
            System.err.println("usage: KAFKA_BROKERS=host:port java Publish.java PROMOTION < targets.csv");
            System.exit(2);
        }
        String promotion = args[0];
        String prefix = System.getenv().getOrDefault("KAFKA_TOPIC_PREFIX", "");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", brokers);
        settings.put("enable.idempotence", "true");
        settings.put("acks", "all");
        ObjectMapper json = new ObjectMapper();
        AtomicReference<String> failed = new AtomicReference<>();
        long count = 0;
        try (var kafka = new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer());
                var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line; (line = lines.readLine()) != null; count++) {
                String[] cells = line.split(",", -1);
                if (cells.length != 3) {
                    System.err.println("line " + (count + 1) + " is not targetId,userId,amount");
                    System.exit(1);
                }
                byte[] value = json.writeValueAsBytes(Map.of(
                        "promotionId", promotion, "targetId", cells[0], "userId", cells[1], "amount", cells[2]));
                // send waits while too many records have no acknowledgement yet.
                kafka.send(new ProducerRecord<>(prefix + "campaign-promotion-point-publish", cells[0], value), (at, error) -> {
                    if (error != null) {
                        failed.compareAndSet(null, "target " + cells[0] + " was not published: " + error);
                    }
                });
            }
            byte[] started = json.writeValueAsBytes(
                    Map.of("promotionId", promotion, "promotionType", "POINT", "totalCount", count));
            kafka.send(new ProducerRecord<>(prefix + "campaign-promotion-started", promotion, started)).get();
        } // close waits for every acknowledgement
        if (failed.get() != null) {
            System.err.println(failed.get() + "; run this again");
            System.exit(1);
        }
        System.out.println("published " + count + " targets of promotion " + promotion);
    }
}
