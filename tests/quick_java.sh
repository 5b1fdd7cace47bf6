#!/bin/sh
# Starts Java with the archive of the program (tests/quick_java.py).
case " $* " in
  *" org.apache.spark.launcher."*) name=none ;;
  *" org.apache.spark."*) name=spark ;;
  *" kafka."*) name=kafka ;;
  *) name=none ;;
esac
archive={home}/$name.jsa
if [ "$name" != none ] && [ -n "${dump}" ]; then
  exec {java} -Xlog:disable -XX:ArchiveClassesAtExit="${dump}" "$@"
elif [ -e "$archive" ]; then
  set -- -XX:SharedArchiveFile="$archive" -Xlog:cds=off -Xlog:cds+dynamic=off "$@"
  exec {java} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "$@"
fi
exec {java} "$@"
