import java.io.IOException;
import java.io.Reader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Consumer of the breach events that escalates each one to a webhook: consumer.py in Java 17, with kafka-clients 4.1.
 *
 * <p>For each event, in this order: POST it, record its EventId, commit its offset. A crash between POST and record
 * repeats the call, so the escalation is at least once; each call carries the EventId as {@code Idempotency-Key}, and a
 * webhook that ignores known keys makes it effectively once. An event that the webhook does not accept is tried until
 * it does, and holds back those behind it: alert on the lag of the consumer group.
 *
 * <p>Variables: those of consumer.py, except that {@code SLA_KAFKA_CLIENT_PROPERTIES} names a properties file of client
 * settings, and {@code SLA_CONSUMER_STORE} a folder. A service with a database records EventIds in a table.
 */
public final class Consumer implements ConsumerRebalanceListener {
    /** Bounds a blocking poll, and so the reaction to SIGTERM. */
    private static final Duration POLL = Duration.ofSeconds(1);
    /** Bounds one call of the webhook. */
    private static final Duration CALL = Duration.ofSeconds(10);
    /** Bounds a commit and the close while Kafka is down: Docker kills 10 s after SIGTERM, Kubernetes after 30 s. */
    private static final Duration KAFKA_ANSWER = Duration.ofSeconds(3);
    private static final int FIRST_PAUSE_SECONDS = 1;
    /** Bounds the delay after the webhook is up again; pauses double until then. */
    private static final int LONGEST_PAUSE_SECONDS = 60;
    /** Must exceed the topic's retention (Kafka's default: 7 days): an older event cannot be read again. */
    private static final Duration KEPT = Duration.ofDays(30);
    /** Number of records between two deletions of old ones. */
    private static final int RECORDS_BETWEEN_DELETIONS = 1_000;
    // The JDK has no JSON parser; a service uses its own. A quotation mark inside a JSON text is escaped, so no text in
    // the event can imitate a field.
    private static final Pattern EVENT_TYPE = Pattern.compile("\"EventType\"\\s*:\\s*\"TicketSlaBreachedKafkaEvent\"");
    private static final Pattern CONTRACT_VERSION = Pattern.compile("\"ContractVersion\"\\s*:\\s*1\\s*[,}]");
    private static final String UUID = "\"\\s*:\\s*\"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\"";
    private static final Pattern EVENT_ID = Pattern.compile("\"EventId" + UUID);
    private static final Pattern TENANT_ID = Pattern.compile("\"TenantId" + UUID);

    private final HttpClient http =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(CALL).build();
    private final URI webhook = webhook();
    private final String canary = variable("SLA_CANARY_TENANT_ID", "00000000-0000-4000-8000-000000ca4a47");
    private final Path store = Path.of(variable("SLA_CONSUMER_STORE", "escalated"));
    private final KafkaConsumer<byte[], byte[]> kafka;
    /** Polled records that are not done, in order; those of a partition that is taken away are removed. */
    private final Deque<ConsumerRecord<byte[], byte[]>> open = new ArrayDeque<>();
    private boolean waiting;
    private int recordCount;
    private volatile boolean stopping;

    private Consumer() throws IOException {
        Properties settings = new Properties();
        String file = variable("SLA_KAFKA_CLIENT_PROPERTIES", "");
        if (!file.isEmpty()) {
            try (Reader reader = Files.newBufferedReader(Path.of(file))) {
                settings.load(reader);
            }
        }
        settings.put("bootstrap.servers", variable("SLA_KAFKA_BOOTSTRAP_SERVERS", null));
        settings.put("group.id", variable("SLA_CONSUMER_GROUP", "ticket-sla-escalation"));
        // Not the default of this client: it leaves out the events of aborted transactions.
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        // A group without an offset begins with the oldest event: skipping events would lose escalations.
        settings.put("auto.offset.reset", "earliest");
        settings.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        Files.createDirectories(store);
        kafka = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] arguments) throws Exception {
        Consumer consumer = new Consumer();
        Thread main = Thread.currentThread();
        int[] exitCode = {1};
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.stopping = true;
            try {
                main.join();
            } catch (InterruptedException ignored) {
                return;
            }
            // A signal would otherwise become the exit code.
            Runtime.getRuntime().halt(exitCode[0]);
        }));
        consumer.run(variable("SLA_KAFKA_TOPIC", "pin.support.ticket-sla-breached.v1"));
        exitCode[0] = 0;
    }

    private void run(String topic) throws IOException, InterruptedException {
        try {
            kafka.subscribe(List.of(topic), this);
            int pause = FIRST_PAUSE_SECONDS;
            while (!stopping) {
                ConsumerRecord<byte[], byte[]> record = open.peek();
                if (record == null) {
                    kafka.poll(POLL).forEach(open::add);
                } else if (isDone(record, pause)) {
                    open.remove();
                    commit(record);
                    pause = FIRST_PAUSE_SECONDS;
                } else {
                    poll(pause);
                    // Another event is first when the partition of this one was taken away.
                    pause = record == open.peek() ? Math.min(2 * pause, LONGEST_PAUSE_SECONDS) : FIRST_PAUSE_SECONDS;
                }
            }
        } finally {
            kafka.close(CloseOptions.timeout(KAFKA_ANSWER));
        }
    }

    /** Escalates the record's event if it must be. Returns false when the webhook did not accept it. */
    private boolean isDone(ConsumerRecord<byte[], byte[]> record, int pause) throws IOException, InterruptedException {
        String place = "partition " + record.partition() + ", offset " + record.offset();
        String value = record.value() == null ? "" : new String(record.value(), StandardCharsets.UTF_8);
        Matcher id = EVENT_ID.matcher(value);
        if (!EVENT_TYPE.matcher(value).find()) {
            log("skipped " + place + ": it is not a TicketSlaBreachedKafkaEvent");
            return true;
        }
        if (!CONTRACT_VERSION.matcher(value).find()) {
            log("skipped " + place + ": its ContractVersion is not 1");
            return true;
        }
        if (!id.find()) {
            log("skipped " + place + ": its EventId is not a UUID");
            return true;
        }
        String eventId = id.group(1);
        if (Files.exists(store.resolve(eventId))) {
            log("skipped " + place + ": event " + eventId + " is recorded");
            return true;
        }
        Matcher tenant = TENANT_ID.matcher(value);
        if (tenant.find() && tenant.group(1).equals(canary)) {
            log("event " + eventId + " of the canary is not escalated");
        } else {
            String fault = faultOfCall(record.value(), eventId);
            if (fault != null) {
                log("event " + eventId + " is not escalated: " + fault + "; next attempt in " + pause + " s");
                return false;
            }
            log("escalated event " + eventId);
        }
        add(eventId);
        return true;
    }

    private String faultOfCall(byte[] body, String eventId) throws InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(webhook).timeout(CALL).header("Content-Type", "application/json")
                .header("Idempotency-Key", eventId).POST(HttpRequest.BodyPublishers.ofByteArray(body)).build();
        try {
            int status = http.send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
            return status >= 200 && status < 300 ? null : "HTTP status " + status;
        } catch (IOException fault) {
            return fault.getClass().getSimpleName(); // its text may hold the URL, and that a secret
        }
    }

    /** Records an event durably: an empty file, whose name is forced to the disk with its folder. */
    private void add(String eventId) throws IOException {
        try {
            Files.createFile(store.resolve(eventId));
        } catch (FileAlreadyExistsException ignored) {
            // another consumer of this machine
        }
        try (FileChannel folder = FileChannel.open(store)) {
            folder.force(true);
        }
        if (recordCount++ % RECORDS_BETWEEN_DELETIONS == 0) {
            Instant oldest = Instant.now().minus(KEPT);
            try (var files = Files.newDirectoryStream(store,
                    file -> Files.getLastModifiedTime(file).toInstant().isBefore(oldest))) {
                for (Path file : files) {
                    Files.deleteIfExists(file);
                }
            }
        }
    }

    private void commit(ConsumerRecord<byte[], byte[]> record) {
        try {
            kafka.commitSync(Map.of(partitionOf(record), new OffsetAndMetadata(record.offset() + 1)), KAFKA_ANSWER);
        } catch (KafkaException fault) {
            // A rebalance, or a broker that is down. The next commit repairs it; until then the record suffices.
            log("offset not committed: " + fault.getClass().getSimpleName());
        }
    }

    /** Pauses, and polls meanwhile: a consumer that does not poll for five minutes loses its partitions. */
    private void poll(int seconds) {
        waiting = true;
        kafka.pause(kafka.assignment());
        long end = System.nanoTime() + Duration.ofSeconds(seconds).toNanos();
        ConsumerRecord<byte[], byte[]> first = open.peek();
        for (long left; !stopping && first == open.peek() && (left = end - System.nanoTime()) > 0; ) {
            kafka.poll(Duration.ofNanos(Math.min(left, POLL.toNanos()))).forEach(open::add);
        }
        waiting = false;
        kafka.resume(kafka.assignment());
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        if (waiting) {
            kafka.pause(partitions); // a new partition must not deliver while an event waits
        }
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        // The next owner begins with the first of them, whose offset is not committed.
        if (!open.isEmpty() && partitions.contains(partitionOf(open.peek()))) {
            log("the event in work is left to the next owner of its partition");
        }
        open.removeIf(record -> partitions.contains(partitionOf(record)));
    }

    private static TopicPartition partitionOf(ConsumerRecord<byte[], byte[]> record) {
        return new TopicPartition(record.topic(), record.partition());
    }

    /** Returns the webhook's URL. A malformed one is not repeated: it may hold a secret. */
    private static URI webhook() {
        String url = variable("SLA_WEBHOOK_URL", null);
        try {
            if (url.matches("https?://[^\\s/]+(/\\S*)?")) {
                return URI.create(url);
            }
        } catch (IllegalArgumentException ignored) {
            // reported below
        }
        System.err.println("SLA_WEBHOOK_URL is not of the form https://HOST/PATH");
        System.exit(1);
        throw new IllegalStateException();
    }

    private static String variable(String name, String otherwise) {
        String text = System.getenv().getOrDefault(name, "").strip();
        if (text.isEmpty() && otherwise == null) {
            System.err.println(name + " is not set");
            System.exit(1);
        }
        return text.isEmpty() ? otherwise : text;
    }

    private static void log(String line) {
        System.err.println(Instant.now() + " " + line);
    }
}
