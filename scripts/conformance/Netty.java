// A server on Netty's codec-haproxy, which names its clients in a file: java Netty.java PORT LOG
import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.haproxy.HAProxyMessage;
import io.netty.handler.codec.haproxy.HAProxyMessageDecoder;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

class Netty {
    static class Echo extends ChannelInboundHandlerAdapter {
        private final Path log;

        Echo(Path log) {
            this.log = log;
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) throws IOException {
            if (!(message instanceof HAProxyMessage header)) {
                context.writeAndFlush(message);
                return;
            }
            String client = header.sourceAddress();
            if (client == null) {
                client = ((InetSocketAddress) context.channel().remoteAddress()).getAddress().getHostAddress();
            }
            Files.writeString(log, client + "\n", StandardOpenOption.APPEND);
            header.release();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            context.close();
        }
    }

    public static void main(String[] words) throws InterruptedException {
        Path log = Path.of(words[1]);
        new ServerBootstrap()
                .group(new NioEventLoopGroup(1))
                .channel(NioServerSocketChannel.class)
                .childHandler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        channel.pipeline().addLast(new HAProxyMessageDecoder(), new Echo(log));
                    }
                })
                .bind("127.0.0.1", Integer.parseInt(words[0]))
                .sync()
                .channel()
                .closeFuture()
                .sync();
    }
}
