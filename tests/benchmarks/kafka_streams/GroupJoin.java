/*
 * The join of tasks, responses and rewards as a Kafka Streams application; tests/benchmarks/peers.py runs it.
 *
 *     tasks ─────┐
 *     responses ─┼─► Join ──► groups: once every slot is answered and scored, with the bytes of its responses
 *     rewards ───┘    │
 *                     ├─ open-groups   task id ──► ids by slot, rewards; cached, so written at each commit
 *                     └─ responses     task id and slot ──► the record of a response, until its group leaves
 *
 * Both stores are in memory, each with a changelog; at least once, a commit a second, one stream thread. What comes
 * again for a slot is skipped, also after the group has left. Of an Avro body only the leading fields are read, as far
 * as the join needs them: ids, policy, slot, group size, the value of a reward. Advantages are GRPO's.
 *
 * Not covered, of what Streamward's join does: checks of what contradicts another event, several samplings of a task,
 * failed responses and rewards, several sources of reward, deadlines, dead letters, an AdvantagedGroup record in Avro,
 * and forgetting groups that have left.
 */

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.function.Function;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.ByteUtils;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public final class GroupJoin {

    static final double EPS = 1e-4;

    /** Run until SIGTERM. Arguments: bootstrap, prefix of the topics, folder for the state. */
    public static void main(String[] args) throws InterruptedException {
        KafkaStreams streams = new KafkaStreams(topology(args[1]), config(args[0], args[1], args[2]));
        CountDownLatch failed = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(exc -> {
            exc.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((state, before) -> {
            if (state == KafkaStreams.State.ERROR) {
                failed.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        failed.await();
        System.exit(1);
    }

    static Properties config(String bootstrap, String prefix, String folder) {
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, prefix + "kafka-streams");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000); // as the loop worker; its rows, too, are written then
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 60_000); // it is stopped a while
        config.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4"); // as Streamward's
        return config;
    }

    static Topology topology(String prefix) {
        Topology topology = new Topology();
        Deserializer<String> key = Serdes.String().deserializer();
        topology.addSource("tasks", key, of(Task::read), prefix + "tasks");
        topology.addSource("responses", key, of(Response::read), prefix + "responses");
        topology.addSource("rewards", key, of(Reward::read), prefix + "rewards");
        topology.addProcessor("join", Join::new, "tasks", "responses", "rewards");
        topology.addStateStore(
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("open-groups"), Serdes.String(), Row.SERDE)
                .withCachingEnabled(),
            "join");
        topology.addStateStore(
            Stores.keyValueStoreBuilder(
                Stores.inMemoryKeyValueStore("responses"), Serdes.String(), Serdes.ByteArray()),
            "join");
        topology.addSink(
            "groups", prefix + "groups", Serdes.String().serializer(), Serdes.ByteArray().serializer(), "join");
        return topology;
    }

    static <E> Deserializer<E> of(Function<byte[], E> read) {
        return (topic, payload) -> read.apply(payload);
    }

    // --- events ----------------------------------------------------------------------------------------------------

    sealed interface Event permits Task, Response, Reward {
        String taskId();
    }

    record Task(String taskId, String policy, int groupSize) implements Event {
        static Task read(byte[] payload) {
            Body body = new Body(payload);
            String taskId = body.text();
            body.skipEnvelope();
            String policy = body.text();
            body.skipText(); // purpose
            body.skipText(); // scenario
            if (body.isPresent()) {
                body.skipText(); // tenant
            }
            return new Task(taskId, policy, (int) body.number());
        }
    }

    record Response(String taskId, String responseId, int slot, byte[] payload) implements Event {
        static Response read(byte[] payload) {
            Body body = new Body(payload);
            String responseId = body.text();
            body.skipText(); // sampling_id
            String taskId = body.text();
            body.skipEnvelope();
            body.skipText(); // policy
            return new Response(taskId, responseId, (int) body.number(), payload);
        }
    }

    record Reward(String taskId, String responseId, int slot, double value) implements Event {
        static Reward read(byte[] payload) {
            Body body = new Body(payload);
            body.skipText(); // reward_id
            String responseId = body.text();
            String taskId = body.text();
            body.skipEnvelope();
            body.skipText(); // policy
            int slot = (int) body.number();
            body.skipText(); // source
            if (!body.isPresent()) {
                throw new IllegalArgumentException("reward of response " + responseId + " has no value");
            }
            return new Reward(taskId, responseId, slot, body.real());
        }
    }

    /** The Avro body of a record, read field by field from its beginning. */
    static final class Body {
        private static final int FRAME_BYTES = 5;

        private final ByteBuffer in;

        Body(byte[] payload) {
            in = ByteBuffer.wrap(payload).order(ByteOrder.LITTLE_ENDIAN).position(FRAME_BYTES);
        }

        long number() {
            return ByteUtils.readVarlong(in); // zigzag, as Avro's
        }

        double real() {
            return in.getDouble();
        }

        String text() {
            int bytes = (int) number();
            String text = new String(in.array(), in.position(), bytes, StandardCharsets.UTF_8);
            in.position(in.position() + bytes);
            return text;
        }

        void skipText() {
            int bytes = (int) number();
            in.position(in.position() + bytes);
        }

        /** Tell whether a nullable field that comes next has a value. */
        boolean isPresent() {
            return number() == 1;
        }

        /** Skip created_at, traceparent, metadata and subject. */
        void skipEnvelope() {
            number();
            if (isPresent()) {
                skipText();
            }
            for (long entries = number(); entries != 0; entries = number()) {
                if (entries < 0) { // a block that says how many bytes it has
                    in.position(in.position() + (int) number());
                    continue;
                }
                for (; entries > 0; entries--) {
                    skipText();
                    skipText();
                }
            }
            if (isPresent()) {
                skipText();
            }
        }
    }

    // --- state -----------------------------------------------------------------------------------------------------

    /** What is known of one task, but for the responses themselves. */
    static final class Row {
        static final Serde<Row> SERDE =
            Serdes.serdeFrom((topic, row) -> row == null ? null : row.bytes(), (topic, bytes) -> read(bytes));
        private static final int HAS_LEFT = -1;

        String policy = "";
        /** 0: the task is not there yet. */
        int groupSize;
        /** Ids by slot, null where there is none; a reward's is that of the response it is for. */
        String[] responses = {};
        String[] rewards = {};
        double[] values = {};

        /** Note what an event says; return whether its slot, or the task, was open. */
        boolean take(Event event) {
            if (event instanceof Task task) {
                boolean isNew = groupSize == 0;
                policy = task.policy();
                groupSize = task.groupSize();
                return isNew;
            }
            if (event instanceof Response response) {
                grow(response.slot());
                boolean isNew = responses[response.slot()] == null;
                if (isNew) {
                    responses[response.slot()] = response.responseId();
                }
                return isNew;
            }
            Reward reward = (Reward) event;
            grow(reward.slot());
            boolean isNew = rewards[reward.slot()] == null;
            if (isNew) {
                rewards[reward.slot()] = reward.responseId();
                values[reward.slot()] = reward.value();
            }
            return isNew;
        }

        private void grow(int slot) {
            if (slot >= responses.length) {
                responses = Arrays.copyOf(responses, slot + 1);
                rewards = Arrays.copyOf(rewards, slot + 1);
                values = Arrays.copyOf(values, slot + 1);
            }
        }

        boolean isWhole() {
            if (groupSize <= 0 || responses.length < groupSize) {
                return false;
            }
            for (int slot = 0; slot < groupSize; slot++) {
                if (responses[slot] == null || !responses[slot].equals(rewards[slot])) {
                    return false;
                }
            }
            return true;
        }

        boolean hasLeft() {
            return groupSize == HAS_LEFT;
        }

        static Row left() {
            Row row = new Row();
            row.groupSize = HAS_LEFT;
            return row;
        }

        /** Return (r_i - mean) / (std + eps), std dividing by n - 1; zeros where all are equal. */
        double[] advantages() {
            double mean = Arrays.stream(values).sum() / values.length;
            double squares = Arrays.stream(values).map(value -> (value - mean) * (value - mean)).sum();
            double std = Math.sqrt(squares / Math.max(1, values.length - 1));
            return Arrays.stream(values).map(value -> std == 0 ? 0 : (value - mean) / (std + EPS)).toArray();
        }

        byte[] bytes() {
            Out out = new Out(12 + policy.length() * 3 + responses.length * (2 * (4 + 3 * 40) + 8));
            out.number(groupSize).text(policy).number(responses.length);
            for (int slot = 0; slot < responses.length; slot++) {
                out.text(responses[slot]).text(rewards[slot]).real(values[slot]);
            }
            return out.bytes();
        }

        static Row read(byte[] bytes) {
            if (bytes == null) {
                return null;
            }
            ByteBuffer in = ByteBuffer.wrap(bytes);
            Row row = new Row();
            row.groupSize = in.getInt();
            row.policy = Out.text(in);
            row.grow(in.getInt() - 1);
            for (int slot = 0; slot < row.responses.length; slot++) {
                row.responses[slot] = Out.text(in);
                row.rewards[slot] = Out.text(in);
                row.values[slot] = in.getDouble();
            }
            return row;
        }
    }

    /** Big-endian numbers, and bytes after their count; -1 is null. */
    static final class Out {
        private ByteBuffer out;

        Out(int capacity) {
            out = ByteBuffer.allocate(capacity);
        }

        Out number(int value) {
            room(4).putInt(value);
            return this;
        }

        Out real(double value) {
            room(8).putDouble(value);
            return this;
        }

        Out text(String value) {
            return value == null ? number(-1) : block(value.getBytes(StandardCharsets.UTF_8));
        }

        Out block(byte[] value) {
            number(value.length);
            room(value.length).put(value);
            return this;
        }

        byte[] bytes() {
            return Arrays.copyOf(out.array(), out.position());
        }

        private ByteBuffer room(int bytes) {
            if (out.remaining() < bytes) {
                out = ByteBuffer.allocate(2 * (out.capacity() + bytes)).put(out.flip());
            }
            return out;
        }

        static String text(ByteBuffer in) {
            int bytes = in.getInt();
            if (bytes < 0) {
                return null;
            }
            String text = new String(in.array(), in.position(), bytes, StandardCharsets.UTF_8);
            in.position(in.position() + bytes);
            return text;
        }
    }

    // --- the join --------------------------------------------------------------------------------------------------

    static final class Join implements Processor<String, Event, String, byte[]> {
        private ProcessorContext<String, byte[]> context;
        private KeyValueStore<String, Row> rows;
        private KeyValueStore<String, byte[]> bodies;

        @Override
        public void init(ProcessorContext<String, byte[]> context) {
            this.context = context;
            rows = context.getStateStore("open-groups");
            bodies = context.getStateStore("responses");
        }

        @Override
        public void process(Record<String, Event> record) {
            String taskId = record.value().taskId();
            if (!taskId.equals(record.key())) {
                throw new IllegalArgumentException("key " + record.key() + ", but task_id " + taskId);
            }
            Row known = rows.get(taskId);
            Row row = known == null ? new Row() : known;
            if (row.hasLeft() || !row.take(record.value())) {
                return; // delivered again
            }
            if (record.value() instanceof Response response) {
                bodies.put(bodyKey(taskId, response.slot()), response.payload());
            }
            if (row.isWhole()) {
                context.forward(new Record<>(row.policy, group(taskId, row), record.timestamp()));
                row = Row.left();
            }
            rows.put(taskId, row);
        }

        /** Return the record of a group that leaves, and forget its responses. */
        private byte[] group(String taskId, Row row) {
            byte[][] members = new byte[row.groupSize][];
            int size = 0;
            for (int slot = 0; slot < members.length; slot++) {
                members[slot] = bodies.delete(bodyKey(taskId, slot));
                size += members[slot].length + 80;
            }
            double[] advantages = row.advantages();
            Out out = new Out(80 + size).text(taskId).number(members.length);
            for (int slot = 0; slot < members.length; slot++) {
                out.number(slot).text(row.responses[slot]).real(row.values[slot]).real(advantages[slot]);
                out.block(members[slot]);
            }
            return out.bytes();
        }

        private static String bodyKey(String taskId, int slot) {
            return taskId + "/" + slot;
        }
    }
}
