package ts_stateful;

import com.google.protobuf.ByteString;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import org.pytorch.serve.grpc.inference.PredictionResponse;

/**
 * Answers to gRPC calls that may have ended. gRPC refuses them, which would end the thread of a worker; here they are dropped.
 *
 * <p>After a change: javac --release 11 -cp .../ts/frontend/model-server.jar ts_stateful/EndedCalls.java
 */
public final class EndedCalls {
    private EndedCalls() {}

    public static void onNext(StreamObserver<Object> call, Object answer) {
        try {
            call.onNext(answer);
        } catch (IllegalStateException | StatusRuntimeException ended) {
            // Nobody waits for it.
        }
    }

    public static void onCompleted(StreamObserver<Object> call) {
        try {
            call.onCompleted();
        } catch (IllegalStateException | StatusRuntimeException ended) {
            // It has ended already.
        }
    }

    public static void onError(StreamObserver<Object> call, Throwable error) {
        try {
            call.onError(error);
        } catch (IllegalStateException | StatusRuntimeException ended) {
            // It has ended already.
        }
    }

    /** Protocol buffers have no null. */
    public static PredictionResponse.Builder setPrediction(
            PredictionResponse.Builder answer, ByteString prediction) {
        return prediction == null ? answer : answer.setPrediction(prediction);
    }
}
