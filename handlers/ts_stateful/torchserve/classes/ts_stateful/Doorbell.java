package ts_stateful;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.pytorch.serve.job.Job;

/**
 * A byte in the pipe of a worker whose call waits for events, when another request waits for the end of that call.
 *
 * <p>A worker that serves in batches which requests can join makes the pipe, in the folder that the variable names, by the
 * name of its model. Where there is one, the first request of a batch waits for no others, as they ring.
 *
 * <p>After a change: javac --release 11 -cp .../ts/frontend/model-server.jar ts_stateful/Doorbell.java
 */
public final class Doorbell {
    private static final String FOLDER = System.getenv("TS_STATEFUL_BELLS");
    private static final Map<Object, Doorbell> BELLS = new ConcurrentHashMap<>();

    private final AtomicBoolean rung = new AtomicBoolean(); // since the last look into the queue: the pipe never fills
    private volatile boolean idle; // no call is going on
    private volatile RandomAccessFile pipe;

    private Doorbell() {}

    public static boolean offer(LinkedBlockingDeque<Object> queue, Object job) {
        boolean added = queue.offer(job);
        if (FOLDER != null && added && job instanceof Job) {
            of(queue).ring(queue, ((Job) job).getModelName());
        }
        return added;
    }

    public static Object poll(LinkedBlockingDeque<Object> queue) {
        of(queue).rung.set(false);
        return queue.poll();
    }

    public static Object poll(LinkedBlockingDeque<Object> queue, long time, TimeUnit unit)
            throws InterruptedException {
        Doorbell bell = of(queue);
        if (bell.pipe != null && time != Long.MAX_VALUE) {
            return poll(queue);
        }
        bell.idle = true;
        try {
            return queue.poll(time, unit);
        } finally {
            bell.idle = false;
        }
    }

    private static Doorbell of(Object queue) {
        return BELLS.computeIfAbsent(queue, key -> new Doorbell());
    }

    private void ring(LinkedBlockingDeque<Object> queue, String model) {
        try {
            if (pipe == null) {
                open(new File(FOLDER, model + ".bell"));
            }
            // A thread that was idle has taken the job before it says that it is not.
            if (pipe != null && !idle && !queue.isEmpty() && rung.compareAndSet(false, true)) {
                pipe.write(0);
            }
        } catch (IOException gone) {
            // The call ends soon by itself.
        }
    }

    private synchronized void open(File file) throws IOException {
        if (pipe == null && file.exists()) {
            pipe = new RandomAccessFile(file, "rw"); // also if nobody reads
        }
    }
}
