# Java: RMI, and the asynchronous channels of NIO.2.
# packages: default-jdk-headless
# needs: java javac

setup() {
    cat >S.java <<'EOF'
import java.net.*; import java.nio.*; import java.nio.channels.*; import java.rmi.*; import java.rmi.registry.*; import java.rmi.server.*;
public class S implements E {
  public byte[] turned(byte[] b) { byte[] r = new byte[b.length]; for (int i = 0; i < b.length; i++) r[i] = b[b.length - 1 - i]; return r; }
  public static void main(String[] a) throws Exception {
    System.setProperty("java.rmi.server.hostname", System.getenv("A"));
    int port = Integer.parseInt(System.getenv("P"));
    LocateRegistry.createRegistry(Integer.parseInt(System.getenv("P3"))).rebind("e", UnicastRemoteObject.exportObject(new S(), port));
    var listener = AsynchronousServerSocketChannel.open().bind(new InetSocketAddress(System.getenv("A"), Integer.parseInt(System.getenv("P2"))));
    listener.accept(null, new CompletionHandler<AsynchronousSocketChannel, Void>() {
      public void completed(AsynchronousSocketChannel c, Void v) { listener.accept(null, this); echo(c); }
      public void failed(Throwable t, Void v) { }
    });
    Thread.sleep(Long.MAX_VALUE);
  }
  static void echo(AsynchronousSocketChannel c) {
    var b = ByteBuffer.allocate(10000);
    c.read(b, null, new CompletionHandler<Integer, Void>() {
      public void completed(Integer n, Void v) {
        if (n < 0) { try { c.close(); } catch (Exception e) { } return; }
        b.flip();
        c.write(b, null, new CompletionHandler<Integer, Void>() {
          public void completed(Integer n, Void v) { if (b.hasRemaining()) c.write(b, null, this); else echo(c); }
          public void failed(Throwable t, Void v) { }
        });
      }
      public void failed(Throwable t, Void v) { }
    });
  }
}
EOF
    cat >E.java <<'EOF'
public interface E extends java.rmi.Remote { byte[] turned(byte[] b) throws java.rmi.RemoteException; }
EOF
    cat >C.java <<'EOF'
import java.net.*; import java.nio.*; import java.nio.channels.*; import java.rmi.registry.*; import java.util.*;
public class C {
  public static void main(String[] a) throws Exception {
    E e = (E) LocateRegistry.getRegistry(System.getenv("A"), Integer.parseInt(System.getenv("P3"))).lookup("e");
    for (int i = 0; i < 500; i++) { byte[] b = new byte[i * 100]; new Random(i).nextBytes(b); if (!Arrays.equals(e.turned(e.turned(b)), b)) System.out.println("wrong " + i); }
    System.out.println("rmi");
    try (var c = AsynchronousSocketChannel.open()) {
      c.connect(new InetSocketAddress(System.getenv("A"), Integer.parseInt(System.getenv("P2")))).get();
      for (int i = 1; i < 300; i++) {
        byte[] b = new byte[i * 100]; new Random(i).nextBytes(b);
        for (var out = ByteBuffer.wrap(b); out.hasRemaining();) c.write(out).get();
        var in = ByteBuffer.allocate(b.length); while (in.hasRemaining()) c.read(in).get();
        if (!Arrays.equals(in.array(), b)) System.out.println("wrong " + i);
      }
    }
    System.out.println("nio");
    System.exit(0);
  }
}
EOF
    javac S.java E.java C.java
}

server() {
    exec java -cp $D S
}

client() {
    java -cp $D C
}
