# Java's own HTTP server and client.
# packages: default-jdk-headless
# needs: java javac

setup() {
    cat >S.java <<'EOF'
import com.sun.net.httpserver.*; import java.net.*; import java.util.concurrent.*;
public class S {
  public static void main(String[] a) throws Exception {
    var s = HttpServer.create(new InetSocketAddress(System.getenv("A"), Integer.parseInt(System.getenv("P"))), 0);
    s.createContext("/", x -> { byte[] b = x.getRequestBody().readAllBytes(); x.sendResponseHeaders(200, b.length + 100000); x.getResponseBody().write(b); x.getResponseBody().write(new byte[100000]); x.close(); });
    s.setExecutor(Executors.newFixedThreadPool(4)); s.start();
  }
}
EOF
    cat >C.java <<'EOF'
import java.net.*; import java.net.http.*; import java.util.stream.*;
public class C {
  public static void main(String[] a) throws Exception {
    var c = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    var u = URI.create("http://" + System.getenv("A") + ":" + System.getenv("P") + "/");
    for (int k = 0; k < 10; k++) {
      var all = IntStream.range(0, 20).mapToObj(n -> c.sendAsync(HttpRequest.newBuilder(u).POST(HttpRequest.BodyPublishers.ofByteArray(new byte[n * 1000])).build(), HttpResponse.BodyHandlers.ofByteArray())).collect(Collectors.toList());
      for (int n = 0; n < 20; n++) if (all.get(n).get().body().length != n * 1000 + 100000) System.out.println("wrong " + n);
    }
    System.out.println("ok");
    System.exit(0);
  }
}
EOF
    javac S.java C.java
}

server() {
    exec java -cp $D S
}

client() {
    java -cp $D C
}
