package ts_stateful;

import io.netty.channel.Channel;
import java.util.UUID;
import org.pytorch.serve.util.NettyUtils;

/**
 * Ids of HTTP requests. A pipelined request has none if the one before it was answered in between; here it gets one.
 *
 * <p>After a change: javac --release 11 -cp .../ts/frontend/model-server.jar ts_stateful/RequestIds.java
 */
public final class RequestIds {
    private RequestIds() {}

    public static String getRequestId(Channel channel) {
        String id = NettyUtils.getRequestId(channel);
        return id == null ? UUID.randomUUID().toString() : id;
    }
}
