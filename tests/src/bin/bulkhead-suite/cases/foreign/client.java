import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.nio.NioSocketChannel;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;

/**
 * Makes calls of each kind. Debian's netty lacks what connects to Unix sockets: the library is given the socket's address, of
 * which it makes the host's name, and its connections are led to the port of a relay.
 */
public class Client {
    /** The address of a Unix socket, which netty prints like this. */
    static class SocketPath extends SocketAddress {
        final String path;

        SocketPath(String path) {
            this.path = path;
        }

        @Override
        public String toString() {
            return path;
        }
    }

    static final MethodDescriptor.Marshaller<byte[]> BYTES = new MethodDescriptor.Marshaller<>() {
        @Override
        public InputStream stream(byte[] message) {
            return new ByteArrayInputStream(message);
        }

        @Override
        public byte[] parse(InputStream message) {
            try {
                return message.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    };

    static MethodDescriptor<byte[], byte[]> method(String name, MethodType type) {
        return MethodDescriptor.newBuilder(BYTES, BYTES).setFullMethodName(name).setType(type).build();
    }

    static void refused(Runnable call) {
        try {
            call.run();
        } catch (StatusRuntimeException error) {
            if (error.getStatus().getCode() == Status.Code.INVALID_ARGUMENT) {
                return;
            }
            throw error;
        }
        throw new AssertionError("a call without arguments succeeds");
    }

    static void call(ManagedChannel channel) {
        var patience = CallOptions.DEFAULT.withDeadlineAfter(60, TimeUnit.SECONDS);
        var nothing = new byte[0];
        var info = method("csi.v1.Identity/GetPluginInfo", MethodType.UNARY);
        var answer = ClientCalls.blockingUnaryCall(channel, info, patience, nothing);
        if (!new String(answer, StandardCharsets.UTF_8).contains("bulkhead.csi.local")) {
            throw new AssertionError("another driver answers");
        }
        var delete = method("csi.v1.Controller/DeleteVolume", MethodType.UNARY);
        refused(() -> ClientCalls.blockingUnaryCall(channel, delete, patience, nothing));
        var blocks = method("csi.v1.SnapshotMetadata/GetMetadataAllocated", MethodType.SERVER_STREAMING);
        refused(() -> ClientCalls.blockingServerStreamingCall(channel, blocks, patience, nothing).hasNext());
    }

    public static void main(String[] arguments) throws Exception {
        // The library's threads would keep the program alive.
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        var path = arguments[0];
        var relay = new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(arguments[1]));
        var group = new NioEventLoopGroup(1);
        for (int round = 0; round < 2; round++) {
            var builder = NettyChannelBuilder.forAddress(new SocketPath(path)).usePlaintext().eventLoopGroup(group);
            builder.channelFactory(() -> new NioSocketChannel() {
                @Override
                protected boolean doConnect(SocketAddress remote, SocketAddress local) throws Exception {
                    return super.doConnect(relay, local);
                }
            });
            if (round == 1) {
                builder.overrideAuthority("localhost");
            }
            var channel = builder.build();
            call(channel);
            System.out.println("served as " + channel.authority());
            channel.shutdownNow();
        }
        System.exit(0);
    }
}
